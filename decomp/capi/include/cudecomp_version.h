/* The version of cuDecomp whose interface `cudecomp.h` has, and the versions of the layouts of its structures. */
#ifndef CUDECOMP_VERSION_H
#define CUDECOMP_VERSION_H

#define CUDECOMP_MAJOR 0
#define CUDECOMP_MINOR 7
#define CUDECOMP_PATCH 0

#define CUDECOMP_GRID_DESC_CONFIG_VERSION 1
#define CUDECOMP_GRID_DESC_AUTOTUNE_OPTIONS_VERSION 1
#define CUDECOMP_PENCIL_INFO_VERSION 1

#endif
