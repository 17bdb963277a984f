/**
 * Checks whether a recorded history is linearizable. In a linearizable history, each operation can take effect at one
 * moment between its request and its response, so that the model allows the resulting sequence. Uses the search of Wing
 * and Gong with the cache of Lowe, which visits each pair of completed operations and state only once.
 */

/** An operation with its request (`asked`), its response (`told`) and the times of both. */
export interface Call<Asked, Told> {
  asked: Asked
  /** Undefined if the result is unknown: the operation may have taken effect at any time after `sent`, or never. */
  told?: Told | undefined
  sent: number
  answered: number
}

export interface Model<State, Asked, Told> {
  initial: State
  /** The state after an operation; undefined if the response is impossible in this state. */
  step (state: State, asked: Asked, told: Told | undefined): State | undefined
}

export interface Checked {
  linearizable: boolean
  /** The longest valid order of operations, as indices into the history. */
  order: number[]
  /** Operations that could come next by their times, but that the model does not allow. Indices as in `order`. */
  stuck: number[]
}

/**
 * Searches for an order of the operations that the model allows. An operation comes first if its response came before
 * the request of the other operation. Compares states by their JSON.
 */
export function check<State, Asked, Told> (
  { initial, step }: Model<State, Asked, Told>, history: readonly Call<Asked, Told>[]
): Checked {
  const calls = history.map(({ asked, told, sent, answered }, place) =>
    ({ asked, told, sent, answered: told === undefined ? Infinity : answered, place }))
    .sort((one, other) => one.sent - other.sent)
  const answers = calls.filter(({ told }) => told !== undefined).length
  const done = new Array<boolean>(calls.length).fill(false)
  const order: number[] = []
  const known = new Set<string>()
  let best: Checked & { answers: number } = { linearizable: false, order: [], stuck: [], answers: -1 }

  function goOn (state: State, left: number): boolean {
    if (left === 0) return true
    const memory = `${done.map((is) => is ? 1 : 0).join('')} ${JSON.stringify(state)}`
    if (known.has(memory)) return false
    known.add(memory)
    // If a request came after the response to another operation, its operation comes after that operation.
    let earliest = Infinity
    for (const [i, { answered }] of calls.entries()) if (!done[i] && answered < earliest) earliest = answered
    const next = calls.flatMap(({ sent }, i) => !done[i] && sent <= earliest ? [i] : [])
    if (answers - left > best.answers) {
      const stuck = next.flatMap((i) => calls[i]!.told === undefined ? [] : [calls[i]!.place])
      best = { linearizable: false, order: [...order], stuck, answers: answers - left }
    }
    for (const i of next) {
      const { asked, told, place } = calls[i]!
      const after = step(state, asked, told)
      if (after === undefined) continue
      done[i] = true
      order.push(place)
      if (goOn(after, told === undefined ? left : left - 1)) return true
      order.pop()
      done[i] = false
    }
    return false
  }

  return goOn(initial, answers) ? { linearizable: true, order, stuck: [] } : best
}
