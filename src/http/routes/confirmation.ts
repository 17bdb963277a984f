import type { FastifyRequest } from 'fastify'
import { fail } from '../../rules/errors.ts'

/**
 * Ends a request whose body does not say `"confirmed": true`. A `preValidation` hook, before the schema judges the
 * body: to leave the confirmation out has an error of its own. What is no object at all is the schema's.
 */
export async function requireConfirmation ({ body }: FastifyRequest) {
  const isObject = typeof body === 'object' && body !== null && !Array.isArray(body)
  if (body === undefined || (isObject && (body as { confirmed?: unknown }).confirmed !== true)) {
    fail('confirmation_required')
  }
}
