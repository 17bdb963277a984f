import type { FastifyRequest } from 'fastify'
import { fail } from '../../rules/errors.ts'

/**
 * Ends a request without `"confirmed": true` with 422 `confirmation_required`. Use it as a `preValidation` hook,
 * because the schema validation would return `validation_failed` first. Leaves bodies that are not objects to the
 * schema.
 */
export async function requireConfirmation ({ body }: FastifyRequest) {
  const isObject = typeof body === 'object' && body !== null && !Array.isArray(body)
  if (body === undefined || (isObject && (body as { confirmed?: unknown }).confirmed !== true)) {
    fail('confirmation_required')
  }
}
