# find_package(Symrail) gives the target Symrail::symrail: OpenSHMEM's headers and library, and Symrail_RUN, which
# starts PEs. Moves with the prefix that it is installed in.

get_filename_component(_symrail_prefix "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)

if(NOT TARGET Symrail::symrail)
  add_library(Symrail::symrail SHARED IMPORTED)
  set_target_properties(Symrail::symrail PROPERTIES
    IMPORTED_LOCATION "${_symrail_prefix}/lib/libsymrail.so"
    INTERFACE_INCLUDE_DIRECTORIES "${_symrail_prefix}/include")
endif()

set(Symrail_RUN "${_symrail_prefix}/bin/oshrun")
unset(_symrail_prefix)
