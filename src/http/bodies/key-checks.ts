import type { FastifyReply } from 'fastify'
import { COSTS } from '../../crypto/costs.ts'
import { decodeBase64 } from '../../crypto/primitives.ts'
import { refuse, refuseEach } from '../../rules/api-error.ts'

export const KEY_CHECK_MEMBERS = ['key_check', 'key_check_salt', 'key_check_iterations'] as const

interface Sent { key_check?: string, key_check_salt?: string, key_check_iterations?: number }

/** Ends the request with 422 if the body lacks a field of a key check. */
export function requireKeyCheck (body: Sent) {
  refuseEach(KEY_CHECK_MEMBERS.filter((member) => body[member] === undefined), 'Required with storage_mode client')
}

/** Reads the key check of a client-managed key and its parameters; 422 for a missing or invalid field. */
export function readKeyCheck (body: Sent) {
  requireKeyCheck(body)
  const check = decodeBase64(body.key_check!)
  const salt = decodeBase64(body.key_check_salt!)
  if (check?.length !== 32) return refuse('key_check', 'Expected base64 of 32 bytes')
  if (salt === undefined || salt.length < 16 || salt.length > 64) {
    return refuse('key_check_salt', 'Expected base64 of 16 to 64 bytes')
  }
  return { check, salt, iterations: body.key_check_iterations! }
}

/** Ends the request with 422 and the message `sentence` if the body has a field of a key check. */
export function refuseKeyCheck (body: Sent, sentence: string) {
  refuseEach(KEY_CHECK_MEMBERS.filter((member) => body[member] !== undefined), sentence)
}

/** Sets a Warning header if the key derivation has too few iterations. */
export function warnOfIterations (reply: FastifyReply, iterations: number) {
  if (iterations < COSTS.keyIterations) {
    reply.header('warning', `299 - "key_check_iterations below ${COSTS.keyIterations} are weak against guessing"`)
  }
}
