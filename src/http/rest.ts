import { setImmediate } from 'node:timers/promises'

/** Lets everybody else have their turn, between two steps of something long. */
export async function rest (): Promise<void> {
  await setImmediate()
}
