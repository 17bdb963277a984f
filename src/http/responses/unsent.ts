import type { FastifyInstance } from 'fastify'
import { ApiError } from '../../rules/api-error.ts'
import { onceClosed } from './closed.ts'

/** In bytes. Responses of less than this size do not count. */
const LARGE = 256 * 1024

/** Maximum bytes of large responses that are in memory because their clients have not read them yet. */
const MAX_UNSENT = { organization: 64 * 1024 * 1024, all: 256 * 1024 * 1024 }

/**
 * Refuses a large response with 503 while the clients of its organization, or all clients, leave too many large
 * responses unread, so that they cannot fill the memory. A client that reads frees the place of its response.
 */
export function limitUnsent (app: FastifyInstance) {
  const ofOrganizations = new Map<string, number>()
  let all = 0
  app.addHook('onSend', (request, reply, payload, done) => {
    const bytes = typeof payload === 'string' || Buffer.isBuffer(payload) ? payload.length : 0
    // Routes without a guard, such as the documentation, have no principal.
    if (bytes < LARGE || request.principal == null) return done(null, payload)
    const { id } = request.principal.organization
    const own = ofOrganizations.get(id) ?? 0
    if (own + bytes > MAX_UNSENT.organization || all + bytes > MAX_UNSENT.all) {
      return done(new ApiError('service_unavailable'))
    }
    ofOrganizations.set(id, own + bytes)
    all += bytes
    onceClosed(reply, () => {
      all -= bytes
      const left = ofOrganizations.get(id)! - bytes
      if (left === 0) ofOrganizations.delete(id)
      else ofOrganizations.set(id, left)
    })
    done(null, payload)
  })
}
