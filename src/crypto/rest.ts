/** Gives other requests a turn of the event loop, between two steps of a long operation. */
export async function rest (): Promise<void> {
  await new Promise<void>((resolve) => { setImmediate(resolve) })
}

/**
 * Waits as long as a step of a long operation took that began then (`performance.now`), so that the operation uses half
 * of the process, the connection and the disk, and other requests the other half.
 */
export async function restAsLong (began: number): Promise<void> {
  await new Promise<void>((resolve) => { setTimeout(resolve, performance.now() - began) })
}
