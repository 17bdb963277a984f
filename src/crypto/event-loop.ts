/** Yields to the event loop, so that other requests run between two steps of a long operation. */
export async function yieldToEventLoop (): Promise<void> {
  await new Promise<void>((resolve) => { setImmediate(resolve) })
}

// Milliseconds of steps in one turn of the event loop. The step that exceeds them is the last of the turn.
const STEPS_MS = 10

let worked = 0

/**
 * Runs a step of work that can take some tens of milliseconds, such as the parsing of a document, when the steps before
 * it in this turn of the event loop have taken less than `STEPS_MS`; otherwise in a later turn. Without this, the steps
 * of requests that arrived together would run in one turn, and all other requests would wait for their sum.
 */
export async function inStep<T> (step: () => T): Promise<T> {
  for (let isFull = worked >= STEPS_MS; isFull; isFull = worked >= STEPS_MS) await yieldToEventLoop()
  // Before the steps that wait, which yield again after this one.
  if (worked === 0) setImmediate(() => { worked = 0 })
  const began = performance.now()
  try {
    return step()
  } finally {
    worked += performance.now() - began
  }
}
