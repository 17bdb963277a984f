import type { FastifyRequest } from 'fastify'

/** Whether a validated request has `dry_run=true`. Such a request changes nothing, not even its `Idempotency-Key`. */
export const isDryRun = ({ query }: FastifyRequest): boolean => (query as { dry_run?: boolean }).dry_run === true
