import type { FastifyRequest } from 'fastify'

/** Whether a validated request is a dry run, which changes nothing and ignores its `Idempotency-Key`. */
export const isDryRun = ({ query }: FastifyRequest): boolean => (query as { dry_run?: boolean }).dry_run === true
