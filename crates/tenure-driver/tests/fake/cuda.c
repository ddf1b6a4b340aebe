/* A driver library that answers as the test's environment tells it to. Built by tests/load.rs as libcuda.so.1.
 *
 *   FAKE_VERSION  what cuDriverGetVersion says        (13000)
 *   FAKE_INIT     the code of cuInit                  (0)
 *   FAKE_COUNT    number of devices                   (1)
 *   FAKE_MISSING  name of a call that is absent       (none)
 *   FAKE_CODE     the code of every other call        (801)
 *
 * Compiled with -DOLD it is a driver from before CUDA 12: no cuGetProcAddress_v2. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static int setting(const char *name, int otherwise)
{
    const char *value = getenv(name);
    return value && *value ? atoi(value) : otherwise;
}

int cuInit(unsigned flags)
{
    (void)flags;
    return setting("FAKE_INIT", 0);
}

int cuDriverGetVersion(int *version)
{
    *version = setting("FAKE_VERSION", 13000);
    return 0;
}

int cuDeviceGetCount(int *count)
{
    *count = setting("FAKE_COUNT", 1);
    return 0;
}

int cuDeviceGet(int *device, int ordinal)
{
    *device = ordinal;
    return ordinal >= 0 && ordinal < setting("FAKE_COUNT", 1) ? 0 : 101;
}

int cuGetErrorName(int code, const char **text)
{
    if (code == 12345) {
        *text = "CUDA_ERROR_FROM_THE_FUTURE";
        return 0;
    }
    *text = NULL;
    return 1;
}

int cuGetErrorString(int code, const char **text)
{
    *text = code == 2 ? "out of memory" : NULL;
    return code == 2 ? 0 : 1;
}

static int anything(void)
{
    return setting("FAKE_CODE", 801);
}

#ifndef OLD
int cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, unsigned *found)
{
    const char *missing = getenv("FAKE_MISSING");
    (void)version;
    *function = NULL;
    *found = 1;
    if (!(flags & 1) || (missing && strcmp(missing, name) == 0))
        return 0;
    *found = 0;
    if (strcmp(name, "cuInit") == 0)
        *function = (void *)cuInit;
    else if (strcmp(name, "cuDriverGetVersion") == 0)
        *function = (void *)cuDriverGetVersion;
    else if (strcmp(name, "cuDeviceGetCount") == 0)
        *function = (void *)cuDeviceGetCount;
    else if (strcmp(name, "cuDeviceGet") == 0)
        *function = (void *)cuDeviceGet;
    else if (strcmp(name, "cuGetErrorName") == 0)
        *function = (void *)cuGetErrorName;
    else if (strcmp(name, "cuGetErrorString") == 0)
        *function = (void *)cuGetErrorString;
    else
        *function = (void *)anything;
    return 0;
}
#endif
