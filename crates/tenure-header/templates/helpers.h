#if defined(__cplusplus) && defined(__GNUC__)
#pragma GCC diagnostic pop
#endif

/* ---- streams in one word ------------------------------------------------------------------------ */

/**
 * A stream of somebody else's, by its value (`cudaStream_t`, `CUstream`). It must be alive during the
 * call that it is passed to; null is the legacy default stream.
 */
static inline tenure_stream tenure_stream_of(void *raw)
{
  tenure_stream stream;
  stream.raw = raw;
  stream.object = 0;
  return stream;
}

/** The legacy default stream, which waits for the other blocking streams of its device. */
#define TENURE_STREAM_LEGACY (tenure_stream_of((void *)(uintptr_t)1))

/** The default stream of the calling thread. */
#define TENURE_STREAM_PER_THREAD (tenure_stream_of((void *)(uintptr_t)2))

#endif /* TENURE_TENURE_H */
