/** Yields to the event loop, so that other requests run between two steps of a long operation. */
export async function yieldToEventLoop (): Promise<void> {
  await new Promise<void>((resolve) => { setImmediate(resolve) })
}
