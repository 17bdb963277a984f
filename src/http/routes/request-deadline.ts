import type { FastifyRequest } from 'fastify'
import { endOfWait, inTime } from '../../db/postgres/guard.ts'
import { waitNow } from '../../db/postgres/wait-clock.ts'

/**
 * Waits for what a request has looked up before it does something, and counts that: its look-ups and what it does have
 * one deadline, so that the answer is there within five seconds whichever of them a database keeps waiting.
 */
export async function waitFor<T> (request: FastifyRequest, work: Promise<T>): Promise<T> {
  const began = waitNow()
  try {
    return await inTime(endOfWait(request.waited), work)
  } finally {
    request.waited += waitNow() - began
  }
}
