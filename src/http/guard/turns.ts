import type { FastifyRequest } from 'fastify'
import { yieldToEventLoop } from '../../crypto/event-loop.ts'
import { afterWait, pauseFor } from '../../db/postgres/wait-clock.ts'
import { Gate } from '../../gate.ts'
import type { Work } from '../../rules/documents/work.ts'
import { principalOf } from '../routes/actor.ts'
import { waitFor } from '../routes/request-deadline.ts'

// Reads that open many documents: matrix, name search, history of a name, comparison, dry run of `restore-to`. In each
// process, an organization runs one of them at a time, so that it cannot slow down other organizations.

/** Milliseconds of work without a pause, so that small reads have no pauses; then milliseconds between two pauses. */
const WORK_MS = { first: 25, next: 5 }
/** A pause is as many times as long as the work before it, and at most so many milliseconds. */
const PAUSE = { times: 2, most: 100 }

// By organization and caller. Waits stand still during a long operation on the only connection, as all waits for the
// database (0056).
const gate = new Gate([{}, { running: 1, waiting: 1_024 }, { waiting: 16 }], {
  work: 'reads of many documents', timeout: 5_000, after: afterWait
})

/** The turn of a read that opens many documents. */
export interface Turn {
  /** The work of the read so far. */
  work: Work
  /** Waits for a look-up, and counts its duration against the deadline of the request. */
  waitFor: <T>(work: Promise<T>) => Promise<T>
  /** Whether the client has disconnected, so that the work should end. */
  isDisconnected: () => boolean
  /**
   * Yields to the event loop after a step of work that began at `began` (`performance.now`). After some milliseconds of
   * work, pauses for twice as long, so that other requests have most of the process.
   */
  pace: (began: number) => Promise<void>
}

/**
 * Runs a read that opens many documents. Waits for its turn: an organization runs one such read at a time, and its
 * callers take turns. After a wait, checks the caller again. Throws WorkOverloaded (503) if a queue is full or the wait
 * is longer than five seconds.
 */
export async function inTurn<T> (request: FastifyRequest, read: (turn: Turn) => Promise<T>): Promise<T> {
  const { organization, type, id } = principalOf(request)
  return gate.run([organization.id, `${type} ${id}`], async () => {
    await request.server.authorizeAgain(request)
    return read(turnOf(request))
  })
}

function turnOf (request: FastifyRequest): Turn {
  let worked = WORK_MS.next - WORK_MS.first
  return {
    work: { done: 0 },
    waitFor: async (work) => waitFor(request, work),
    isDisconnected: () => request.raw.socket.destroyed,
    pace: async (began) => {
      worked += performance.now() - began
      if (worked < WORK_MS.next) return yieldToEventLoop()
      const pause = Math.min(PAUSE.times * worked, PAUSE.most)
      worked = 0
      await pauseFor(pause)
    }
  }
}
