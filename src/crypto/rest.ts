/** Milliseconds of work on documents after which a request ends its page, so that other requests run. */
export const MAX_WORK = 300

/** Yields to the event loop, so that other requests run between two steps of a long operation. */
export async function rest (): Promise<void> {
  await new Promise<void>((resolve) => { setImmediate(resolve) })
}
