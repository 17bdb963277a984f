import type { FastifyRequest } from 'fastify'
import { endOfWait, inTime } from '../../db/postgres/guard.ts'
import { waitNow } from '../../db/postgres/wait-clock.ts'

/**
 * Waits for a look-up and adds its duration to `request.waited`. All waits of a request for the database share one
 * deadline, so that the response is sent within five seconds even if the database is slow.
 */
export async function waitFor<T> (request: FastifyRequest, work: Promise<T>): Promise<T> {
  const began = waitNow()
  try {
    return await inTime(endOfWait(request.waited), work)
  } finally {
    request.waited += waitNow() - began
  }
}
