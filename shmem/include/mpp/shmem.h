/* Where older programs look for it. */
#include "../shmem.h"
