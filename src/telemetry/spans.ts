import { AsyncLocalStorage } from 'node:async_hooks'

/** The kinds of spans. */
export type Work = 'guard' | 'statement' | 'transaction' | 'seal' | 'open' | 'derive' | 'password'

/** Ends a span. */
export type End = () => void

/** Collects spans; `text` is that of a statement, without values. */
export interface Trace { begin (work: Work, text?: string): End }

const current = new AsyncLocalStorage<Trace>()
// Enabled on the first trace, because AsyncLocalStorage slows down every promise.
let isTraced = false
const nothing: End = () => {}

/** Spans that begin after this call belong to the trace, until it ends. */
export function within (trace: Trace, next: () => void): void {
  isTraced = true
  current.run(trace, next)
}

/**
 * Begins a span and returns a function that ends it. Both do nothing without a trace. Work for several requests belongs
 * to the request that began it.
 */
export function beginPiece (work: Work, text?: string): End {
  return isTraced ? current.getStore()?.begin(work, text) ?? nothing : nothing
}
