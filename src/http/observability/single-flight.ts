/** One run at a time: whoever asks while one is under way gets what comes of that. */
export function shared<T> (run: () => Promise<T>): () => Promise<T> {
  let underWay: Promise<T> | undefined
  return async () => {
    underWay ??= run().finally(() => { underWay = undefined })
    return underWay
  }
}
