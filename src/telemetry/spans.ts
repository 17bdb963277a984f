import { AsyncLocalStorage } from 'node:async_hooks'

export type Work = 'guard' | 'statement' | 'transaction' | 'seal' | 'open' | 'derive' | 'password'

export type End = () => void

/** Collects spans. `text` is the SQL text of a statement, without parameter values. */
export interface Trace { begin (work: Work, text?: string): End }

const current = new AsyncLocalStorage<Trace>()
// AsyncLocalStorage slows down every promise, so it is not used before the first trace.
let isTraced = false
const nothing: End = () => {}

/** Runs `next` in the async context of the trace, to which `beginPiece` then adds spans. */
export function within (trace: Trace, next: () => void): void {
  isTraced = true
  current.run(trace, next)
}

/**
 * Begins a span in the current trace and returns a function that ends the span; does nothing without a trace. If one
 * statement serves a batch of requests, the span belongs to the request that started the batch.
 */
export function beginPiece (work: Work, text?: string): End {
  return isTraced ? current.getStore()?.begin(work, text) ?? nothing : nothing
}
