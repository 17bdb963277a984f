import type { FastifyReply } from 'fastify'
import type { Level } from '../../../schemas/secrets.ts'

/** The header that names the levels which the caller's restrictions exclude from merged values without `meta`. */
export const LEFT_OUT_HEADER = 'Strongroom-Left-Out'

/** Sets the header if the restrictions exclude a level above: `project`, `target` or `project, target`. */
export function sayLeftOut (reply: FastifyReply, { leftOut }: { leftOut: readonly Level[] }) {
  if (leftOut.length > 0) reply.header(LEFT_OUT_HEADER, leftOut.join(', '))
}
