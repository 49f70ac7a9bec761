! Pencil transposes and halos in Fortran with cuDecomp's names, over libcudecomp. cudecomp.h has the units and the
! meaning of each function. Compile this file with the program, and link with -lcudecomp.
!
! Axes, dimensions, memory orders and the first and last elements of pencils count from 1 here, as in Fortran. An
! optional argument that is left out stands for none, or for the default stream. cudecompInit accepts a communicator of
! the modules mpi and mpi_f08, or none: then it joins the job that a launcher has started.
module cudecomp
  use, intrinsic :: iso_c_binding
  implicit none
  private

  integer(c_int), parameter, public :: CUDECOMP_TRANSPOSE_COMM_MPI_P2P = 1
  integer(c_int), parameter, public :: CUDECOMP_TRANSPOSE_COMM_MPI_P2P_PL = 2
  integer(c_int), parameter, public :: CUDECOMP_TRANSPOSE_COMM_MPI_A2A = 3
  integer(c_int), parameter, public :: CUDECOMP_TRANSPOSE_COMM_NCCL = 4
  integer(c_int), parameter, public :: CUDECOMP_TRANSPOSE_COMM_NCCL_PL = 5
  integer(c_int), parameter, public :: CUDECOMP_TRANSPOSE_COMM_NVSHMEM = 6
  integer(c_int), parameter, public :: CUDECOMP_TRANSPOSE_COMM_NVSHMEM_PL = 7
  integer(c_int), parameter, public :: CUDECOMP_TRANSPOSE_COMM_NVSHMEM_SM = 8
  integer(c_int), parameter, public :: CUDECOMP_HALO_COMM_MPI = 1
  integer(c_int), parameter, public :: CUDECOMP_HALO_COMM_MPI_BLOCKING = 2
  integer(c_int), parameter, public :: CUDECOMP_HALO_COMM_NCCL = 3
  integer(c_int), parameter, public :: CUDECOMP_HALO_COMM_NVSHMEM = 4
  integer(c_int), parameter, public :: CUDECOMP_HALO_COMM_NVSHMEM_BLOCKING = 5
  integer(c_int), parameter, public :: CUDECOMP_FLOAT = -1
  integer(c_int), parameter, public :: CUDECOMP_DOUBLE = -2
  integer(c_int), parameter, public :: CUDECOMP_FLOAT_COMPLEX = -3
  integer(c_int), parameter, public :: CUDECOMP_DOUBLE_COMPLEX = -4
  integer(c_int), parameter, public :: CUDECOMP_AUTOTUNE_GRID_TRANSPOSE = 0
  integer(c_int), parameter, public :: CUDECOMP_AUTOTUNE_GRID_HALO = 1
  integer(c_int), parameter, public :: CUDECOMP_RANK_ORDER_DEFAULT = 0
  integer(c_int), parameter, public :: CUDECOMP_RANK_ORDER_ROW_MAJOR = 1
  integer(c_int), parameter, public :: CUDECOMP_RANK_ORDER_COL_MAJOR = 2
  integer(c_int), parameter, public :: CUDECOMP_RESULT_SUCCESS = 0
  integer(c_int), parameter, public :: CUDECOMP_RESULT_INVALID_USAGE = 1
  integer(c_int), parameter, public :: CUDECOMP_RESULT_NOT_SUPPORTED = 2
  integer(c_int), parameter, public :: CUDECOMP_RESULT_INTERNAL_ERROR = 3
  integer(c_int), parameter, public :: CUDECOMP_RESULT_CUDA_ERROR = 4
  integer(c_int), parameter, public :: CUDECOMP_RESULT_CUTENSOR_ERROR = 5
  integer(c_int), parameter, public :: CUDECOMP_RESULT_MPI_ERROR = 6
  integer(c_int), parameter, public :: CUDECOMP_RESULT_NCCL_ERROR = 7
  integer(c_int), parameter, public :: CUDECOMP_RESULT_NVSHMEM_ERROR = 8
  integer(c_int), parameter, public :: CUDECOMP_RESULT_NVML_ERROR = 9

  type, bind(c), public :: cudecompHandle
    type(c_ptr) :: member = c_null_ptr
  end type

  type, bind(c), public :: cudecompGridDesc
    type(c_ptr) :: member = c_null_ptr
  end type

  ! cudecompGridDescConfigSetDefaults sets the defaults first.
  type, bind(c), public :: cudecompGridDescConfig
    integer(c_int64_t) :: struct_size = 0
    integer(c_int32_t) :: magic = 0
    integer(c_int32_t) :: version = 0
    integer(c_int32_t) :: gdims(3) = 0
    integer(c_int32_t) :: gdims_dist(3) = 0
    integer(c_int32_t) :: pdims(2) = 0
    integer(c_int) :: rank_order = 0
    integer(c_int) :: transpose_comm_backend = 0
    logical(c_bool) :: transpose_axis_contiguous(3) = .false.
    ! For pencils of each axis, its second index, the axes by memory order, fastest first; -1 where it is not set.
    integer(c_int32_t) :: transpose_mem_order(3, 3) = -1
    integer(c_int) :: halo_comm_backend = 0
  end type

  ! cudecompGridDescAutotuneOptionsSetDefaults sets the defaults first.
  type, bind(c), public :: cudecompGridDescAutotuneOptions
    integer(c_int64_t) :: struct_size = 0
    integer(c_int32_t) :: magic = 0
    integer(c_int32_t) :: version = 0
    integer(c_int32_t) :: n_warmup_trials = 0
    integer(c_int32_t) :: n_trials = 0
    integer(c_int) :: grid_mode = 0
    integer(c_int) :: dtype = 0
    logical(c_bool) :: allow_uneven_decompositions = .false.
    logical(c_bool) :: disable_mpi_backends = .false.
    logical(c_bool) :: disable_nccl_backends = .false.
    logical(c_bool) :: disable_nvshmem_backends = .false.
    real(c_double) :: skip_threshold = 0
    logical(c_bool) :: autotune_transpose_backend = .false.
    logical(c_bool) :: transpose_use_inplace_buffers(4) = .false.
    real(c_double) :: transpose_op_weights(4) = 1
    integer(c_int32_t) :: transpose_input_halo_extents(3, 4) = 0
    integer(c_int32_t) :: transpose_output_halo_extents(3, 4) = 0
    integer(c_int32_t) :: transpose_input_padding(3, 4) = 0
    integer(c_int32_t) :: transpose_output_padding(3, 4) = 0
    logical(c_bool) :: autotune_halo_backend = .false.
    integer(c_int32_t) :: halo_extents(3) = 0
    logical(c_bool) :: halo_periods(3) = .false.
    integer(c_int32_t) :: halo_axis = 1
    integer(c_int32_t) :: halo_padding(3) = 0
  end type

  type, bind(c), public :: cudecompPencilInfo
    integer(c_int64_t) :: struct_size = 0
    integer(c_int32_t) :: magic = 0
    integer(c_int32_t) :: version = 0
    integer(c_int32_t) :: shape(3) = 0
    integer(c_int32_t) :: lo(3) = 0
    integer(c_int32_t) :: hi(3) = 0
    integer(c_int32_t) :: order(3) = 0
    integer(c_int32_t) :: halo_extents(3) = 0
    integer(c_int32_t) :: padding(3) = 0
    integer(c_int64_t) :: size = 0
  end type

  ! The version of the structures' layouts.
  integer(c_int32_t), parameter :: VERSION = 1

  ! The same type as that of the module mpi_f08, which need not be there.
  type, bind(c) :: MPI_Comm
    integer :: MPI_VAL
  end type

  public :: cudecompInit, cudecompFinalize, symrailDecompRank, symrailDecompLastError
  public :: cudecompGridDescConfigSetDefaults, cudecompGridDescAutotuneOptionsSetDefaults
  public :: cudecompGridDescCreate, cudecompGridDescDestroy, cudecompGetGridDescConfig
  public :: cudecompGetPencilInfo, cudecompGetTransposeWorkspaceSize, cudecompGetHaloWorkspaceSize
  public :: cudecompGetDataTypeSize, cudecompGetShiftedRank, cudecompMalloc, cudecompFree
  public :: cudecompTransposeCommBackendToString, cudecompHaloCommBackendToString
  public :: cudecompTransposeXToY, cudecompTransposeYToZ, cudecompTransposeZToY, cudecompTransposeYToX
  public :: cudecompUpdateHalosX, cudecompUpdateHalosY, cudecompUpdateHalosZ

  interface cudecompInit
    procedure :: init_of_launcher, init_of_communicator, init_of_communicator_f08
  end interface

  ! Allocates elements, as a Fortran pointer; `cudecompFree` frees it.
  interface cudecompMalloc
    procedure :: malloc_r4, malloc_r8, malloc_c4, malloc_c8
  end interface

  interface cudecompFree
    procedure :: free_r4, free_r8, free_c4, free_c8
  end interface

  interface
    function strlen(text) bind(c, name='strlen') result(length)
      import
      type(c_ptr), value :: text
      integer(c_size_t) :: length
    end function

    function c_init(handle) bind(c, name='symrailDecompInit') result(res)
      import
      type(cudecompHandle), intent(out) :: handle
      integer(c_int) :: res
    end function

    function c_init_of(handle, mpi_comm) bind(c, name='cudecompInit_F') result(res)
      import
      type(cudecompHandle), intent(out) :: handle
      integer(c_int), value :: mpi_comm
      integer(c_int) :: res
    end function

    function symrailDecompRank(handle, rank, size) bind(c, name='symrailDecompRank') result(res)
      import
      type(cudecompHandle), value :: handle
      integer(c_int32_t), intent(out) :: rank
      integer(c_int32_t), intent(out) :: size
      integer(c_int) :: res
    end function

    function c_last_error() bind(c, name='symrailDecompLastError') result(text)
      import
      type(c_ptr) :: text
    end function

    function c_finalize(handle) bind(c, name='cudecompFinalize') result(res)
      import
      type(cudecompHandle), value :: handle
      integer(c_int) :: res
    end function

    function c_config_defaults(config, bytes, version) &
      bind(c, name='cudecompGridDescConfigSetDefaultsVersioned') result(res)
      import
      type(cudecompGridDescConfig), intent(out) :: config
      integer(c_int64_t), value :: bytes
      integer(c_int32_t), value :: version
      integer(c_int) :: res
    end function

    function c_options_defaults(options, bytes, version) &
      bind(c, name='cudecompGridDescAutotuneOptionsSetDefaultsVersioned') result(res)
      import
      type(cudecompGridDescAutotuneOptions), intent(out) :: options
      integer(c_int64_t), value :: bytes
      integer(c_int32_t), value :: version
      integer(c_int) :: res
    end function

    function c_create(handle, grid_desc, config, config_bytes, config_version, options, options_bytes, &
                      options_version) bind(c, name='cudecompGridDescCreateVersioned') result(res)
      import
      type(cudecompHandle), value :: handle
      type(cudecompGridDesc), intent(out) :: grid_desc
      type(cudecompGridDescConfig), intent(inout) :: config
      integer(c_int64_t), value :: config_bytes
      integer(c_int32_t), value :: config_version
      type(cudecompGridDescAutotuneOptions), intent(in), optional :: options
      integer(c_int64_t), value :: options_bytes
      integer(c_int32_t), value :: options_version
      integer(c_int) :: res
    end function

    function c_destroy(handle, grid_desc) bind(c, name='cudecompGridDescDestroy') result(res)
      import
      type(cudecompHandle), value :: handle
      type(cudecompGridDesc), value :: grid_desc
      integer(c_int) :: res
    end function

    function c_config(handle, grid_desc, config, bytes, version) &
      bind(c, name='cudecompGetGridDescConfigVersioned') result(res)
      import
      type(cudecompHandle), value :: handle
      type(cudecompGridDesc), value :: grid_desc
      type(cudecompGridDescConfig), intent(out) :: config
      integer(c_int64_t), value :: bytes
      integer(c_int32_t), value :: version
      integer(c_int) :: res
    end function

    function c_pencil_info(handle, grid_desc, pencil_info, bytes, version, axis, halo_extents, padding) &
      bind(c, name='cudecompGetPencilInfoVersioned') result(res)
      import
      type(cudecompHandle), value :: handle
      type(cudecompGridDesc), value :: grid_desc
      type(cudecompPencilInfo), intent(out) :: pencil_info
      integer(c_int64_t), value :: bytes
      integer(c_int32_t), value :: version
      integer(c_int32_t), value :: axis
      integer(c_int32_t), intent(in), optional :: halo_extents(3)
      integer(c_int32_t), intent(in), optional :: padding(3)
      integer(c_int) :: res
    end function

    function cudecompGetTransposeWorkspaceSize(handle, grid_desc, workspace_size) &
      bind(c, name='cudecompGetTransposeWorkspaceSize') result(res)
      import
      type(cudecompHandle), value :: handle
      type(cudecompGridDesc), value :: grid_desc
      integer(c_int64_t), intent(out) :: workspace_size
      integer(c_int) :: res
    end function

    function c_halo_workspace(handle, grid_desc, axis, halo_extents, workspace_size) &
      bind(c, name='cudecompGetHaloWorkspaceSize') result(res)
      import
      type(cudecompHandle), value :: handle
      type(cudecompGridDesc), value :: grid_desc
      integer(c_int32_t), value :: axis
      integer(c_int32_t), intent(in), optional :: halo_extents(3)
      integer(c_int64_t), intent(out) :: workspace_size
      integer(c_int) :: res
    end function

    function cudecompGetDataTypeSize(dtype, dtype_size) bind(c, name='cudecompGetDataTypeSize') result(res)
      import
      integer(c_int), value :: dtype
      integer(c_int64_t), intent(out) :: dtype_size
      integer(c_int) :: res
    end function

    function c_malloc(handle, grid_desc, buffer, bytes) bind(c, name='cudecompMalloc') result(res)
      import
      type(cudecompHandle), value :: handle
      type(cudecompGridDesc), value :: grid_desc
      type(c_ptr), intent(out) :: buffer
      integer(c_size_t), value :: bytes
      integer(c_int) :: res
    end function

    function c_free(handle, grid_desc, buffer) bind(c, name='cudecompFree') result(res)
      import
      type(cudecompHandle), value :: handle
      type(cudecompGridDesc), value :: grid_desc
      type(c_ptr), value :: buffer
      integer(c_int) :: res
    end function

    function c_transpose_name(backend) bind(c, name='cudecompTransposeCommBackendToString') result(text)
      import
      integer(c_int), value :: backend
      type(c_ptr) :: text
    end function

    function c_halo_name(backend) bind(c, name='cudecompHaloCommBackendToString') result(text)
      import
      integer(c_int), value :: backend
      type(c_ptr) :: text
    end function

    function c_shifted_rank(handle, grid_desc, axis, dim, displacement, periodic, shifted_rank) &
      bind(c, name='cudecompGetShiftedRank') result(res)
      import
      type(cudecompHandle), value :: handle
      type(cudecompGridDesc), value :: grid_desc
      integer(c_int32_t), value :: axis
      integer(c_int32_t), value :: dim
      integer(c_int32_t), value :: displacement
      logical(c_bool), value :: periodic
      integer(c_int32_t), intent(out) :: shifted_rank
      integer(c_int) :: res
    end function

    function c_XToY(handle, grid_desc, input, output, work, dtype, &
                    input_halo_extents, output_halo_extents, input_padding, output_padding, stream) &
      bind(c, name='cudecompTransposeXToY') result(res)
      import
      type(cudecompHandle), value :: handle
      type(cudecompGridDesc), value :: grid_desc
      type(*) :: input(*), output(*), work(*)
      integer(c_int), value :: dtype
      integer(c_int32_t), intent(in), optional :: input_halo_extents(3)
      integer(c_int32_t), intent(in), optional :: output_halo_extents(3)
      integer(c_int32_t), intent(in), optional :: input_padding(3)
      integer(c_int32_t), intent(in), optional :: output_padding(3)
      integer(c_intptr_t), value :: stream
      integer(c_int) :: res
    end function

    function c_YToZ(handle, grid_desc, input, output, work, dtype, &
                    input_halo_extents, output_halo_extents, input_padding, output_padding, stream) &
      bind(c, name='cudecompTransposeYToZ') result(res)
      import
      type(cudecompHandle), value :: handle
      type(cudecompGridDesc), value :: grid_desc
      type(*) :: input(*), output(*), work(*)
      integer(c_int), value :: dtype
      integer(c_int32_t), intent(in), optional :: input_halo_extents(3)
      integer(c_int32_t), intent(in), optional :: output_halo_extents(3)
      integer(c_int32_t), intent(in), optional :: input_padding(3)
      integer(c_int32_t), intent(in), optional :: output_padding(3)
      integer(c_intptr_t), value :: stream
      integer(c_int) :: res
    end function

    function c_ZToY(handle, grid_desc, input, output, work, dtype, &
                    input_halo_extents, output_halo_extents, input_padding, output_padding, stream) &
      bind(c, name='cudecompTransposeZToY') result(res)
      import
      type(cudecompHandle), value :: handle
      type(cudecompGridDesc), value :: grid_desc
      type(*) :: input(*), output(*), work(*)
      integer(c_int), value :: dtype
      integer(c_int32_t), intent(in), optional :: input_halo_extents(3)
      integer(c_int32_t), intent(in), optional :: output_halo_extents(3)
      integer(c_int32_t), intent(in), optional :: input_padding(3)
      integer(c_int32_t), intent(in), optional :: output_padding(3)
      integer(c_intptr_t), value :: stream
      integer(c_int) :: res
    end function

    function c_YToX(handle, grid_desc, input, output, work, dtype, &
                    input_halo_extents, output_halo_extents, input_padding, output_padding, stream) &
      bind(c, name='cudecompTransposeYToX') result(res)
      import
      type(cudecompHandle), value :: handle
      type(cudecompGridDesc), value :: grid_desc
      type(*) :: input(*), output(*), work(*)
      integer(c_int), value :: dtype
      integer(c_int32_t), intent(in), optional :: input_halo_extents(3)
      integer(c_int32_t), intent(in), optional :: output_halo_extents(3)
      integer(c_int32_t), intent(in), optional :: input_padding(3)
      integer(c_int32_t), intent(in), optional :: output_padding(3)
      integer(c_intptr_t), value :: stream
      integer(c_int) :: res
    end function

    function c_halos_X(handle, grid_desc, input, work, dtype, halo_extents, halo_periods, dim, padding, stream) &
      bind(c, name='cudecompUpdateHalosX') result(res)
      import
      type(cudecompHandle), value :: handle
      type(cudecompGridDesc), value :: grid_desc
      type(*) :: input(*), work(*)
      integer(c_int), value :: dtype
      integer(c_int32_t), intent(in) :: halo_extents(3)
      logical(c_bool), intent(in) :: halo_periods(3)
      integer(c_int32_t), value :: dim
      integer(c_int32_t), intent(in), optional :: padding(3)
      integer(c_intptr_t), value :: stream
      integer(c_int) :: res
    end function

    function c_halos_Y(handle, grid_desc, input, work, dtype, halo_extents, halo_periods, dim, padding, stream) &
      bind(c, name='cudecompUpdateHalosY') result(res)
      import
      type(cudecompHandle), value :: handle
      type(cudecompGridDesc), value :: grid_desc
      type(*) :: input(*), work(*)
      integer(c_int), value :: dtype
      integer(c_int32_t), intent(in) :: halo_extents(3)
      logical(c_bool), intent(in) :: halo_periods(3)
      integer(c_int32_t), value :: dim
      integer(c_int32_t), intent(in), optional :: padding(3)
      integer(c_intptr_t), value :: stream
      integer(c_int) :: res
    end function

    function c_halos_Z(handle, grid_desc, input, work, dtype, halo_extents, halo_periods, dim, padding, stream) &
      bind(c, name='cudecompUpdateHalosZ') result(res)
      import
      type(cudecompHandle), value :: handle
      type(cudecompGridDesc), value :: grid_desc
      type(*) :: input(*), work(*)
      integer(c_int), value :: dtype
      integer(c_int32_t), intent(in) :: halo_extents(3)
      logical(c_bool), intent(in) :: halo_periods(3)
      integer(c_int32_t), value :: dim
      integer(c_int32_t), intent(in), optional :: padding(3)
      integer(c_intptr_t), value :: stream
      integer(c_int) :: res
    end function
  end interface

contains

  function init_of_launcher(handle) result(res)
    type(cudecompHandle), intent(out) :: handle
    integer(c_int) :: res
    res = c_init(handle)
  end function

  function init_of_communicator(handle, mpi_comm) result(res)
    type(cudecompHandle), intent(out) :: handle
    integer, intent(in) :: mpi_comm
    integer(c_int) :: res
    res = c_init_of(handle, mpi_comm)
  end function

  function init_of_communicator_f08(handle, mpi_comm_f08) result(res)
    type(cudecompHandle), intent(out) :: handle
    type(MPI_Comm), intent(in) :: mpi_comm_f08
    integer(c_int) :: res
    res = c_init_of(handle, mpi_comm_f08%MPI_VAL)
  end function

  function cudecompFinalize(handle) result(res)
    type(cudecompHandle), intent(inout) :: handle
    integer(c_int) :: res
    res = c_finalize(handle)
    handle%member = c_null_ptr
  end function

  ! The message of the last failure.
  function symrailDecompLastError() result(text)
    character(:), allocatable :: text
    text = text_of(c_last_error())
  end function

  function text_of(at) result(text)
    type(c_ptr), intent(in) :: at
    character(:), allocatable :: text
    character(kind=c_char), pointer :: letters(:)
    integer :: i
    text = ''
    if (.not. c_associated(at)) return
    call c_f_pointer(at, letters, [strlen(at)])
    text = repeat(' ', size(letters))
    do i = 1, size(letters)
      text(i:i) = letters(i)
    end do
  end function

  function cudecompGridDescConfigSetDefaults(config) result(res)
    type(cudecompGridDescConfig), intent(out) :: config
    integer(c_int) :: res
    res = c_config_defaults(config, c_sizeof(config), VERSION)
  end function

  function cudecompGridDescAutotuneOptionsSetDefaults(options) result(res)
    type(cudecompGridDescAutotuneOptions), intent(out) :: options
    integer(c_int) :: res
    res = c_options_defaults(options, c_sizeof(options), VERSION)
    options%halo_axis = options%halo_axis + 1
  end function

  function cudecompGridDescCreate(handle, grid_desc, config, options) result(res)
    type(cudecompHandle), intent(in) :: handle
    type(cudecompGridDesc), intent(out) :: grid_desc
    type(cudecompGridDescConfig), intent(inout) :: config
    type(cudecompGridDescAutotuneOptions), intent(in), optional :: options
    type(cudecompGridDescAutotuneOptions) :: from_zero
    integer(c_int) :: res
    call shift_orders(config, -1)
    if (present(options)) then
      from_zero = options
      from_zero%halo_axis = from_zero%halo_axis - 1
      res = c_create(handle, grid_desc, config, c_sizeof(config), VERSION, from_zero, c_sizeof(from_zero), VERSION)
    else
      res = c_create(handle, grid_desc, config, c_sizeof(config), VERSION, options_bytes=0_c_int64_t, &
                     options_version=0_c_int32_t)
    end if
    call shift_orders(config, 1)
  end function

  ! Orders that are not set stay unset.
  subroutine shift_orders(config, by)
    type(cudecompGridDescConfig), intent(inout) :: config
    integer, intent(in) :: by
    integer :: axis
    do axis = 1, 3
      associate (order => config%transpose_mem_order(:, axis))
        if (any(order /= -1)) order = order + by
      end associate
    end do
  end subroutine

  function cudecompGridDescDestroy(handle, grid_desc) result(res)
    type(cudecompHandle), intent(in) :: handle
    type(cudecompGridDesc), intent(inout) :: grid_desc
    integer(c_int) :: res
    res = c_destroy(handle, grid_desc)
    grid_desc%member = c_null_ptr
  end function

  function cudecompGetGridDescConfig(handle, grid_desc, config) result(res)
    type(cudecompHandle), intent(in) :: handle
    type(cudecompGridDesc), intent(in) :: grid_desc
    type(cudecompGridDescConfig), intent(out) :: config
    integer(c_int) :: res
    res = c_config(handle, grid_desc, config, c_sizeof(config), VERSION)
    call shift_orders(config, 1)
  end function

  function cudecompGetPencilInfo(handle, grid_desc, pencil_info, axis, halo_extents, padding) result(res)
    type(cudecompHandle), intent(in) :: handle
    type(cudecompGridDesc), intent(in) :: grid_desc
    type(cudecompPencilInfo), intent(out) :: pencil_info
    integer, intent(in) :: axis
    integer(c_int32_t), intent(in), optional :: halo_extents(3), padding(3)
    integer(c_int) :: res
    res = c_pencil_info(handle, grid_desc, pencil_info, c_sizeof(pencil_info), VERSION, axis - 1, halo_extents, padding)
    pencil_info%lo = pencil_info%lo + 1
    pencil_info%hi = pencil_info%hi + 1
    pencil_info%order = pencil_info%order + 1
  end function

  function cudecompGetHaloWorkspaceSize(handle, grid_desc, axis, halo_extents, workspace_size) result(res)
    type(cudecompHandle), intent(in) :: handle
    type(cudecompGridDesc), intent(in) :: grid_desc
    integer, intent(in) :: axis
    integer(c_int32_t), intent(in) :: halo_extents(3)
    integer(c_int64_t), intent(out) :: workspace_size
    integer(c_int) :: res
    res = c_halo_workspace(handle, grid_desc, axis - 1, halo_extents, workspace_size)
  end function

  function cudecompGetShiftedRank(handle, grid_desc, axis, dim, displacement, periodic, shifted_rank) result(res)
    type(cudecompHandle), intent(in) :: handle
    type(cudecompGridDesc), intent(in) :: grid_desc
    integer, intent(in) :: axis, dim, displacement
    logical, intent(in) :: periodic
    integer(c_int32_t), intent(out) :: shifted_rank
    integer(c_int) :: res
    res = c_shifted_rank(handle, grid_desc, axis - 1, dim - 1, displacement, logical(periodic, c_bool), shifted_rank)
  end function

  function cudecompTransposeCommBackendToString(backend) result(text)
    integer(c_int), intent(in) :: backend
    character(:), allocatable :: text
    text = text_of(c_transpose_name(backend))
  end function

  function cudecompHaloCommBackendToString(backend) result(text)
    integer(c_int), intent(in) :: backend
    character(:), allocatable :: text
    text = text_of(c_halo_name(backend))
  end function

  function malloc_r4(handle, grid_desc, buffer, buffer_size) result(res)
    type(cudecompHandle), intent(in) :: handle
    type(cudecompGridDesc), intent(in) :: grid_desc
    real(c_float), pointer, contiguous, intent(out) :: buffer(:)
    integer(c_int64_t), intent(in) :: buffer_size
    type(c_ptr) :: at
    integer(c_int) :: res
    nullify (buffer)
    res = c_malloc(handle, grid_desc, at, int(4 * buffer_size, c_size_t))
    if (res == CUDECOMP_RESULT_SUCCESS) call c_f_pointer(at, buffer, [buffer_size])
  end function

  function free_r4(handle, grid_desc, buffer) result(res)
    type(cudecompHandle), intent(in) :: handle
    type(cudecompGridDesc), intent(in) :: grid_desc
    real(c_float), pointer, contiguous, intent(inout) :: buffer(:)
    integer(c_int) :: res
    res = c_free(handle, grid_desc, c_loc(buffer))
    nullify (buffer)
  end function

  function malloc_r8(handle, grid_desc, buffer, buffer_size) result(res)
    type(cudecompHandle), intent(in) :: handle
    type(cudecompGridDesc), intent(in) :: grid_desc
    real(c_double), pointer, contiguous, intent(out) :: buffer(:)
    integer(c_int64_t), intent(in) :: buffer_size
    type(c_ptr) :: at
    integer(c_int) :: res
    nullify (buffer)
    res = c_malloc(handle, grid_desc, at, int(8 * buffer_size, c_size_t))
    if (res == CUDECOMP_RESULT_SUCCESS) call c_f_pointer(at, buffer, [buffer_size])
  end function

  function free_r8(handle, grid_desc, buffer) result(res)
    type(cudecompHandle), intent(in) :: handle
    type(cudecompGridDesc), intent(in) :: grid_desc
    real(c_double), pointer, contiguous, intent(inout) :: buffer(:)
    integer(c_int) :: res
    res = c_free(handle, grid_desc, c_loc(buffer))
    nullify (buffer)
  end function

  function malloc_c4(handle, grid_desc, buffer, buffer_size) result(res)
    type(cudecompHandle), intent(in) :: handle
    type(cudecompGridDesc), intent(in) :: grid_desc
    complex(c_float_complex), pointer, contiguous, intent(out) :: buffer(:)
    integer(c_int64_t), intent(in) :: buffer_size
    type(c_ptr) :: at
    integer(c_int) :: res
    nullify (buffer)
    res = c_malloc(handle, grid_desc, at, int(8 * buffer_size, c_size_t))
    if (res == CUDECOMP_RESULT_SUCCESS) call c_f_pointer(at, buffer, [buffer_size])
  end function

  function free_c4(handle, grid_desc, buffer) result(res)
    type(cudecompHandle), intent(in) :: handle
    type(cudecompGridDesc), intent(in) :: grid_desc
    complex(c_float_complex), pointer, contiguous, intent(inout) :: buffer(:)
    integer(c_int) :: res
    res = c_free(handle, grid_desc, c_loc(buffer))
    nullify (buffer)
  end function

  function malloc_c8(handle, grid_desc, buffer, buffer_size) result(res)
    type(cudecompHandle), intent(in) :: handle
    type(cudecompGridDesc), intent(in) :: grid_desc
    complex(c_double_complex), pointer, contiguous, intent(out) :: buffer(:)
    integer(c_int64_t), intent(in) :: buffer_size
    type(c_ptr) :: at
    integer(c_int) :: res
    nullify (buffer)
    res = c_malloc(handle, grid_desc, at, int(16 * buffer_size, c_size_t))
    if (res == CUDECOMP_RESULT_SUCCESS) call c_f_pointer(at, buffer, [buffer_size])
  end function

  function free_c8(handle, grid_desc, buffer) result(res)
    type(cudecompHandle), intent(in) :: handle
    type(cudecompGridDesc), intent(in) :: grid_desc
    complex(c_double_complex), pointer, contiguous, intent(inout) :: buffer(:)
    integer(c_int) :: res
    res = c_free(handle, grid_desc, c_loc(buffer))
    nullify (buffer)
  end function

  function stream_or_default(stream) result(it)
    integer(c_intptr_t), intent(in), optional :: stream
    integer(c_intptr_t) :: it
    it = 0
    if (present(stream)) it = stream
  end function

  function cudecompTransposeXToY(handle, grid_desc, input, output, work, dtype, input_halo_extents, &
                                 output_halo_extents, input_padding, output_padding, stream) result(res)
    type(cudecompHandle), intent(in) :: handle
    type(cudecompGridDesc), intent(in) :: grid_desc
    type(*) :: input(*), output(*), work(*)
    integer(c_int), intent(in) :: dtype
    integer(c_int32_t), intent(in), optional :: input_halo_extents(3), output_halo_extents(3)
    integer(c_int32_t), intent(in), optional :: input_padding(3), output_padding(3)
    integer(c_intptr_t), intent(in), optional :: stream
    integer(c_int) :: res
    res = c_XToY(handle, grid_desc, input, output, work, dtype, input_halo_extents, output_halo_extents, &
                 input_padding, output_padding, stream_or_default(stream))
  end function

  function cudecompTransposeYToZ(handle, grid_desc, input, output, work, dtype, input_halo_extents, &
                                 output_halo_extents, input_padding, output_padding, stream) result(res)
    type(cudecompHandle), intent(in) :: handle
    type(cudecompGridDesc), intent(in) :: grid_desc
    type(*) :: input(*), output(*), work(*)
    integer(c_int), intent(in) :: dtype
    integer(c_int32_t), intent(in), optional :: input_halo_extents(3), output_halo_extents(3)
    integer(c_int32_t), intent(in), optional :: input_padding(3), output_padding(3)
    integer(c_intptr_t), intent(in), optional :: stream
    integer(c_int) :: res
    res = c_YToZ(handle, grid_desc, input, output, work, dtype, input_halo_extents, output_halo_extents, &
                 input_padding, output_padding, stream_or_default(stream))
  end function

  function cudecompTransposeZToY(handle, grid_desc, input, output, work, dtype, input_halo_extents, &
                                 output_halo_extents, input_padding, output_padding, stream) result(res)
    type(cudecompHandle), intent(in) :: handle
    type(cudecompGridDesc), intent(in) :: grid_desc
    type(*) :: input(*), output(*), work(*)
    integer(c_int), intent(in) :: dtype
    integer(c_int32_t), intent(in), optional :: input_halo_extents(3), output_halo_extents(3)
    integer(c_int32_t), intent(in), optional :: input_padding(3), output_padding(3)
    integer(c_intptr_t), intent(in), optional :: stream
    integer(c_int) :: res
    res = c_ZToY(handle, grid_desc, input, output, work, dtype, input_halo_extents, output_halo_extents, &
                 input_padding, output_padding, stream_or_default(stream))
  end function

  function cudecompTransposeYToX(handle, grid_desc, input, output, work, dtype, input_halo_extents, &
                                 output_halo_extents, input_padding, output_padding, stream) result(res)
    type(cudecompHandle), intent(in) :: handle
    type(cudecompGridDesc), intent(in) :: grid_desc
    type(*) :: input(*), output(*), work(*)
    integer(c_int), intent(in) :: dtype
    integer(c_int32_t), intent(in), optional :: input_halo_extents(3), output_halo_extents(3)
    integer(c_int32_t), intent(in), optional :: input_padding(3), output_padding(3)
    integer(c_intptr_t), intent(in), optional :: stream
    integer(c_int) :: res
    res = c_YToX(handle, grid_desc, input, output, work, dtype, input_halo_extents, output_halo_extents, &
                 input_padding, output_padding, stream_or_default(stream))
  end function

  function cudecompUpdateHalosX(handle, grid_desc, input, work, dtype, halo_extents, halo_periods, dim, padding, &
                                stream) result(res)
    type(cudecompHandle), intent(in) :: handle
    type(cudecompGridDesc), intent(in) :: grid_desc
    type(*) :: input(*), work(*)
    integer(c_int), intent(in) :: dtype
    integer(c_int32_t), intent(in) :: halo_extents(3)
    logical, intent(in) :: halo_periods(3)
    integer, intent(in) :: dim
    integer(c_int32_t), intent(in), optional :: padding(3)
    integer(c_intptr_t), intent(in), optional :: stream
    integer(c_int) :: res
    res = c_halos_X(handle, grid_desc, input, work, dtype, halo_extents, logical(halo_periods, c_bool), dim - 1, &
                    padding, stream_or_default(stream))
  end function

  function cudecompUpdateHalosY(handle, grid_desc, input, work, dtype, halo_extents, halo_periods, dim, padding, &
                                stream) result(res)
    type(cudecompHandle), intent(in) :: handle
    type(cudecompGridDesc), intent(in) :: grid_desc
    type(*) :: input(*), work(*)
    integer(c_int), intent(in) :: dtype
    integer(c_int32_t), intent(in) :: halo_extents(3)
    logical, intent(in) :: halo_periods(3)
    integer, intent(in) :: dim
    integer(c_int32_t), intent(in), optional :: padding(3)
    integer(c_intptr_t), intent(in), optional :: stream
    integer(c_int) :: res
    res = c_halos_Y(handle, grid_desc, input, work, dtype, halo_extents, logical(halo_periods, c_bool), dim - 1, &
                    padding, stream_or_default(stream))
  end function

  function cudecompUpdateHalosZ(handle, grid_desc, input, work, dtype, halo_extents, halo_periods, dim, padding, &
                                stream) result(res)
    type(cudecompHandle), intent(in) :: handle
    type(cudecompGridDesc), intent(in) :: grid_desc
    type(*) :: input(*), work(*)
    integer(c_int), intent(in) :: dtype
    integer(c_int32_t), intent(in) :: halo_extents(3)
    logical, intent(in) :: halo_periods(3)
    integer, intent(in) :: dim
    integer(c_int32_t), intent(in), optional :: padding(3)
    integer(c_intptr_t), intent(in), optional :: stream
    integer(c_int) :: res
    res = c_halos_Z(handle, grid_desc, input, work, dtype, halo_extents, logical(halo_periods, c_bool), dim - 1, &
                    padding, stream_or_default(stream))
  end function
end module
