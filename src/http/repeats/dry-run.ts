import type { FastifyRequest } from 'fastify'

/** Whether a validated request has `dry_run=true`: it must change nothing and stores no response for repeats. */
export const isDryRun = ({ query }: FastifyRequest): boolean => (query as { dry_run?: boolean }).dry_run === true
