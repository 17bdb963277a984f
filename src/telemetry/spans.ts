import { AsyncLocalStorage } from 'node:async_hooks'

/** Pieces of work that a trace may tell of. */
export type Work = 'guard' | 'statement' | 'transaction' | 'seal' | 'open' | 'derive' | 'password'

/** Ends a piece of work. */
export type End = () => void

/** What somebody waits for, and the pieces that it takes. */
export interface Trace {
  /** @param text of a statement, which has no values in it */
  begin (work: Work, text?: string): End
}

const current = new AsyncLocalStorage<Trace>()
// Until somebody traces, nobody asks what is under way: that has its price on each promise.
let isTraced = false
const nothing: End = () => {}

/** What is begun from here on is a piece of this trace, until it is over. */
export function within (trace: Trace, next: () => void): void {
  isTraced = true
  current.run(trace, next)
}

/**
 * Begins a piece of work; called at its end, what this answers ends it. Where nobody traces, both are nothing. What is
 * done for several requests at once is a piece of the one that began it.
 */
export function beginPiece (work: Work, text?: string): End {
  return isTraced ? current.getStore()?.begin(work, text) ?? nothing : nothing
}
