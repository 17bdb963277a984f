/** Concurrent calls of the returned function share one call of `run` and its result. */
export function singleFlight<T> (run: () => Promise<T>): () => Promise<T> {
  let underWay: Promise<T> | undefined
  return async () => {
    underWay ??= run().finally(() => { underWay = undefined })
    return underWay
  }
}
