/** Lets everybody else have their turn, between two steps of something long. */
export async function rest (): Promise<void> {
  await new Promise<void>((resolve) => { setImmediate(resolve) })
}
