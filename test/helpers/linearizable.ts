/**
 * Whether a recorded history is linearizable: whether each operation can have happened at one moment between its
 * request and its answer, so that all of them, one after the other, are what the model allows. Wing and Gong's search
 * with Lowe's memory: it never goes twice from the same operations done and the same state.
 */

/** An operation as its client saw it. */
export interface Call<Asked, Told> {
  asked: Asked
  /** Undefined when the answer never came, or told nothing: it may have happened at any time since, or never. */
  told?: Told | undefined
  sent: number
  answered: number
}

export interface Model<State, Asked, Told> {
  initial: State
  /**
   * The state after an operation; undefined when it cannot have been answered so in this state. Without an answer,
   * what it does if it happens.
   */
  step (state: State, asked: Asked, told: Told | undefined): State | undefined
}

export interface Checked {
  linearizable: boolean
  /** An order that the model allows of as many answered operations as could be, by their place in the history. */
  order: number[]
  /** The answered operations, each of which could have come next then by the clock, that the model refused. */
  stuck: number[]
}

/**
 * Looks for an order of the history that the model allows and that the clock does: an operation that was answered
 * before another was sent comes before it. States are compared by their JSON.
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
    // Nothing that was sent after an answer comes before what was answered.
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
