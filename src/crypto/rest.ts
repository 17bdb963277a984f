/** Gives other requests a turn of the event loop, between two steps of a long operation. */
export async function rest (): Promise<void> {
  await new Promise<void>((resolve) => { setImmediate(resolve) })
}
