import { areWaitsPaused, pauseFor } from '../../db/postgres/wait-clock.ts'

/** A deletion of more levels than this, including the deleted level itself, is a long operation. */
export const MAX_LEVELS_OF_SHORT_DELETION = 1_000

// Maximum pause. The pause is limited because the transaction stays open.
const MAX_REST_MS = 1_000

/**
 * Pauses after a batch that began at `began` (`performance.now`), so that other requests get half of the CPU and disk
 * time. The pause is as long as the batch took, at most `MAX_REST_MS`. If the database has only one connection, does
 * not pause, because all other requests wait for this connection.
 */
export async function leaveHalf (began: number): Promise<void> {
  if (areWaitsPaused()) return
  const took = Math.min(performance.now() - began, MAX_REST_MS)
  await pauseFor(took)
}
