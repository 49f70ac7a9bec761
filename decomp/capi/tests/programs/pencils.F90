! The four transposes and a halo in Fortran: every element arrives at its place.
program pencils
  use, intrinsic :: iso_c_binding
  use cudecomp
#ifdef WITH_MPI
  use mpi
#endif
  implicit none

  integer, parameter :: extents(3) = [12, 9, 10]
  integer(c_int32_t), parameter :: halo(3) = [1, 0, 1], padding(3) = [2, 1, 0]
  type(cudecompHandle) :: handle
  type(cudecompGridDesc) :: grid
  type(cudecompGridDescConfig) :: config, told
  type(cudecompGridDescAutotuneOptions) :: options
  type(cudecompPencilInfo) :: x, y, z
  complex(c_double_complex), pointer, contiguous :: work(:)
  complex(c_double_complex), allocatable :: in_x(:), in_y(:), in_z(:)
  integer(c_int64_t) :: of_transposes, of_halos(3)
  integer(c_int32_t) :: rank, ranks, below
  integer :: round, axis
#ifdef WITH_MPI
  integer :: error
  call MPI_Init(error)
  call check(cudecompInit(handle, MPI_COMM_WORLD), 'cudecompInit')
#else
  call check(cudecompInit(handle), 'cudecompInit')
#endif
  call check(symrailDecompRank(handle, rank, ranks), 'symrailDecompRank')

  call check(cudecompGridDescConfigSetDefaults(config), 'defaults')
  call check(cudecompGridDescAutotuneOptionsSetDefaults(options), 'defaults of options')
  call expect(options%halo_axis == 1 .and. options%n_trials == 5, 'defaults of options')
  config%gdims = extents
  call expect(cudecompGridDescCreate(handle, grid, config) == CUDECOMP_RESULT_INVALID_USAGE, 'a grid of 0 processes')
  call expect(len(symrailDecompLastError()) > 0, 'a sentence about it')
  ! Y pencils have Y fastest, and Z pencils Z.
  config%transpose_mem_order = reshape([1, 2, 3, 2, 3, 1, 3, 1, 2], [3, 3])
  options%n_trials = 2
  call check(cudecompGridDescCreate(handle, grid, config, options), 'cudecompGridDescCreate')
  call expect(product(config%pdims) == ranks, 'a process grid')
  call expect(all(config%transpose_mem_order(:, 3) == [3, 1, 2]), 'memory orders as they were')
  call check(cudecompGetGridDescConfig(handle, grid, told), 'cudecompGetGridDescConfig')
  call expect(all(told%pdims == config%pdims) .and. all(told%transpose_mem_order == config%transpose_mem_order), 'told')

  call check(cudecompGetPencilInfo(handle, grid, x, 1), 'cudecompGetPencilInfo')
  call check(cudecompGetPencilInfo(handle, grid, y, 2, halo, padding), 'cudecompGetPencilInfo')
  call check(cudecompGetPencilInfo(handle, grid, z, 3, padding=padding), 'cudecompGetPencilInfo')
  call expect(x%lo(1) == 1 .and. x%hi(1) == extents(1) .and. all(x%order == [1, 2, 3]), 'X pencils')
  call expect(y%order(1) == 2 .and. y%shape(1) == extents(2) + padding(2), 'Y pencils')
  call expect(all(z%order == [3, 1, 2]) .and. z%hi(1) == extents(3), 'Z pencils')
  call check(cudecompGetTransposeWorkspaceSize(handle, grid, of_transposes), 'workspace')
  do axis = 1, 3
    call check(cudecompGetHaloWorkspaceSize(handle, grid, axis, halo, of_halos(axis)), 'workspace')
  end do
  call check(cudecompMalloc(handle, grid, work, max(of_transposes, maxval(of_halos))), 'cudecompMalloc')
  call expect(size(work) >= of_transposes, 'elements of the workspace')
  allocate (in_x(x%size), in_y(y%size), in_z(z%size))

  do round = 1, 2
    in_x = 0; in_y = 0; in_z = 0
    call walk(x, in_x, .true.)
    call check(cudecompTransposeXToY(handle, grid, in_x, in_y, work, CUDECOMP_DOUBLE_COMPLEX, &
                                     output_halo_extents=halo, output_padding=padding), 'X to Y')
    call walk(y, in_y, .false.)
    call update(2, y, in_y)
    call check(cudecompTransposeYToZ(handle, grid, in_y, in_z, work, CUDECOMP_DOUBLE_COMPLEX, &
                                     halo, input_padding=padding, output_padding=padding), 'Y to Z')
    call walk(z, in_z, .false.)
    in_y = 0
    call check(cudecompTransposeZToY(handle, grid, in_z, in_y, work, CUDECOMP_DOUBLE_COMPLEX, &
                                     output_halo_extents=halo, input_padding=padding, output_padding=padding), 'Z to Y')
    call walk(y, in_y, .false.)
    in_x = 0
    call check(cudecompTransposeYToX(handle, grid, in_y, in_x, work, CUDECOMP_DOUBLE_COMPLEX, &
                                     halo, input_padding=padding, stream=0_c_intptr_t), 'Y to X')
    call walk(x, in_x, .false.)
  end do

  deallocate (in_x, in_z)
  call check(cudecompGetPencilInfo(handle, grid, x, 1, halo, padding), 'cudecompGetPencilInfo')
  call check(cudecompGetPencilInfo(handle, grid, z, 3, halo, padding), 'cudecompGetPencilInfo')
  allocate (in_x(x%size), in_z(z%size))
  in_x = 0; in_z = 0
  call walk(x, in_x, .true.)
  call update(1, x, in_x)
  call walk(z, in_z, .true.)
  call update(3, z, in_z)

  call check(cudecompGetShiftedRank(handle, grid, 1, 1, 1, .false., below), 'cudecompGetShiftedRank')
  call expect(below == -1, 'the axis of a pencil is not split')
  call expect(index(cudecompTransposeCommBackendToString(CUDECOMP_TRANSPOSE_COMM_NCCL), 'NCCL') == 1, 'a name')
  call check(cudecompFree(handle, grid, work), 'cudecompFree')
  call expect(.not. associated(work), 'no workspace')
  call check(cudecompGridDescDestroy(handle, grid), 'cudecompGridDescDestroy')
  call check(cudecompFinalize(handle), 'cudecompFinalize')
  if (rank == 0) print '(a, i0, a, i0)', 'verified on ', config%pdims(1), ' x ', config%pdims(2)
#ifdef WITH_MPI
  call MPI_Finalize(error)
#endif

contains

  subroutine expect(condition, what)
    logical, intent(in) :: condition
    character(*), intent(in) :: what
    if (condition) return
    print '(3a)', what, ': ', symrailDecompLastError()
    error stop 1
  end subroutine

  subroutine check(res, what)
    integer(c_int), intent(in) :: res
    character(*), intent(in) :: what
    call expect(res == CUDECOMP_RESULT_SUCCESS, what)
  end subroutine

  ! The value of an element of the whole array.
  function number(at) result(it)
    integer, intent(in) :: at(3)
    complex(c_double_complex) :: it
    it = cmplx(at(1) + 100 * (at(2) + 100 * at(3)), at(3) - at(1), c_double)
  end function

  ! The index in memory of an element of a pencil, counted from its first own one.
  function place(info, i, j, k) result(it)
    type(cudecompPencilInfo), intent(in) :: info
    integer, intent(in) :: i, j, k
    integer :: it, before(3)
    before = info%halo_extents(info%order)
    it = 1 + i + before(1) + info%shape(1) * (j + before(2) + info%shape(2) * (k + before(3)))
  end function

  ! Sets a pencil's own elements, or compares them.
  subroutine walk(info, data, fill)
    type(cudecompPencilInfo), intent(in) :: info
    complex(c_double_complex), intent(inout) :: data(:)
    logical, intent(in) :: fill
    integer :: i, j, k, at(3)
    do k = 0, info%hi(3) - info%lo(3)
      do j = 0, info%hi(2) - info%lo(2)
        do i = 0, info%hi(1) - info%lo(1)
          at(info%order) = info%lo + [i, j, k]
          if (fill) data(place(info, i, j, k)) = number(at)
          call expect(abs(data(place(info, i, j, k)) - number(at)) <= 0, 'an element')
        end do
      end do
    end do
  end subroutine

  ! Updates a pencil's halos, one dimension after the other. Each update copies the elements of its own dimension, and
  ! no others.
  subroutine update(axis, info, data)
    integer, intent(in) :: axis
    type(cudecompPencilInfo), intent(in) :: info
    complex(c_double_complex), intent(inout) :: data(:)
    logical, parameter :: periods(3) = .true.
    integer :: dim, res
    do dim = 1, 3
      select case (axis)
      case (1)
        res = cudecompUpdateHalosX(handle, grid, data, work, CUDECOMP_DOUBLE_COMPLEX, halo, periods, dim, padding)
      case (2)
        res = cudecompUpdateHalosY(handle, grid, data, work, CUDECOMP_DOUBLE_COMPLEX, halo, periods, dim, padding)
      case default
        res = cudecompUpdateHalosZ(handle, grid, data, work, CUDECOMP_DOUBLE_COMPLEX, halo, periods, dim, padding)
      end select
      call check(res, 'halos')
      call walk(info, data, .false.)
      call layer_below(info, data, 1, .true.)
      call layer_below(info, data, 3, dim == 3)
    end do
  end subroutine

  ! Compares the halo below the first own element along a dimension, which is 0 before its update.
  subroutine layer_below(info, data, dim, is_there)
    type(cudecompPencilInfo), intent(in) :: info
    complex(c_double_complex), intent(in) :: data(:)
    integer, intent(in) :: dim
    logical, intent(in) :: is_there
    complex(c_double_complex) :: expected
    integer :: at(3), before(3)
    at(info%order) = info%lo
    at(dim) = modulo(at(dim) - 2, extents(dim)) + 1
    before = merge(-1, 0, info%order == dim)
    expected = merge(number(at), (0, 0) * number(at), is_there)
    call expect(abs(data(place(info, before(1), before(2), before(3))) - expected) <= 0, 'the halo')
  end subroutine
end program
