/** Milliseconds of work on documents after which a request returns its page, even if the page is not full. */
export const MAX_WORK_MS = 300

/** Yields to the event loop, so that other requests run between two steps of a long operation. */
export async function yieldToEventLoop (): Promise<void> {
  await new Promise<void>((resolve) => { setImmediate(resolve) })
}
