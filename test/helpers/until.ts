import { setImmediate as nextTurn, setTimeout as pause } from 'node:timers/promises'

type Falsy = false | 0 | '' | null | undefined

/**
 * Waits until the value of a condition is truthy, and returns the value. Throws an error with the text of the condition
 * if this takes longer than the limit.
 *
 * @param every milliseconds between two checks of the condition; 0 waits only for the next turn of the event loop
 * @param within the limit in milliseconds, independent of changes of the clock
 * @param again runs after each check that failed
 */
export async function until<T> (
  condition: () => T | Promise<T>,
  { every = 10, within = 60_000, again }: { every?: number, within?: number, again?: () => unknown } = {}
): Promise<Exclude<T, Falsy>> {
  const end = performance.now() + within
  for (;;) {
    const value = await condition()
    if (value) return value as Exclude<T, Falsy>
    if (performance.now() > end) throw new Error(`not within ${within} ms: ${textOf(condition)}`)
    await again?.()
    await (every === 0 ? nextTurn() : pause(every))
  }
}

/** The source text of a function in one line of at most 200 characters. */
function textOf (condition: () => unknown): string {
  const text = String(condition).replaceAll(/\s+/g, ' ')
  return text.length > 200 ? `${text.slice(0, 199)}…` : text
}
