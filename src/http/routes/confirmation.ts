import type { FastifyRequest } from 'fastify'
import { fail } from '../../rules/errors.ts'

/**
 * Ends a request without `"confirmed": true` with 422 `confirmation_required`. Use this as a `preValidation` hook,
 * because the validation of the schema fails with `validation_failed`. Ignores bodies that are not objects.
 */
export async function requireConfirmation ({ body }: FastifyRequest) {
  const isObject = typeof body === 'object' && body !== null && !Array.isArray(body)
  if (body === undefined || (isObject && (body as { confirmed?: unknown }).confirmed !== true)) {
    fail('confirmation_required')
  }
}
