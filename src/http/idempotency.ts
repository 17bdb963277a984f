import { Type } from '@sinclair/typebox'
import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify'
import { hmac, sameBytes, secretKey, sha256 } from '../crypto/primitives.ts'
import { transaction, type Db } from '../db/database.ts'
import { recordEvent, type AuditEvent } from '../repositories/audit.ts'
import { createAnswer, findAnswer, tryLockKey, type KeyOwner, type KnownAnswer } from '../repositories/idempotency.ts'
import { fail, refuse } from '../rules/errors.ts'
import { actorOf, principalOf } from './actor.ts'

declare module 'fastify' {
  interface FastifyContextConfig {
    /**
     * Takes an `Idempotency-Key`: its handler answers by `changeOnce`, which gives the first answer again to whoever
     * repeats the request.
     */
    repeatable?: true
  }
}

const KEY = /^[\x21-\x7e]{1,255}$/

/** What a change answers, and what is remembered of it. */
export interface Change { status: number, body: object | null, events: AuditEvent[] }

/** Publishes the header, and the errors that go with it, of every route that declares `repeatable`. */
export function installIdempotency (app: FastifyInstance) {
  app.addHook('onRoute', (route) => {
    if (!route.config?.repeatable) return
    const { errors = [] } = route.config
    route.config = { ...route.config, errors: [...errors, 'conflict', 'idempotency_key_reused', 'validation_failed'] }
    route.schema = {
      ...route.schema,
      headers: Type.Object({
        'idempotency-key': Type.Optional(Type.String({
          description: 'names this request for 24 hours: whoever repeats it gets the first answer again, with ' +
            '`Idempotent-Replayed: true`; 1 to 255 visible characters'
        }))
      })
    }
  })
}

/**
 * Makes a change, in one transaction with its events and with its answer, and answers it. The change is counted in its
 * route's `limitOfEffect` right before. A request that repeats one with the same `Idempotency-Key` gets the first
 * answer; one that is another request 422; one that comes while the first is under way 409: none of them counts.
 */
export async function changeOnce (
  app: FastifyInstance, request: FastifyRequest, reply: FastifyReply, change: (db: Db) => Promise<Change>
): Promise<FastifyReply> {
  const asked = askedBy(request)
  const known = asked && await findAnswer(app.reads, asked.owner)
  if (asked && known) return replay(reply, asked, known)
  let isCounted = request.routeOptions.config.limitOfEffect === undefined
  const made = await transaction(app.db, async (db): Promise<Change | KnownAnswer> => {
    if (asked) {
      if (!await tryLockKey(db, asked.owner)) fail('conflict')
      // Another one has just ended.
      const first = await findAnswer(db, asked.owner)
      if (first) return first
    }
    // Once, also where the transaction is tried again.
    if (!isCounted) await app.countEffect(request, reply)
    isCounted = true
    const made = await change(db)
    if (asked) {
      await createAnswer(db, asked.owner, { request: asked.mac, status: made.status, answer: { body: made.body } })
    }
    await recordEvent(db, actorOf(request), ...made.events)
    return made
  })
  if (asked && 'answer' in made) return replay(reply, asked, made)
  return reply.code(made.status).send((made as Change).body)
}

interface Asked { owner: KeyOwner, mac: Buffer }

// The key as it was sent is stored nowhere: with what is, nobody can check a guess at what the request said.
function askedBy (request: FastifyRequest): Asked | undefined {
  const { 'idempotency-key': key } = request.headers
  if (!request.routeOptions.config.repeatable || key === undefined) return undefined
  if (typeof key !== 'string' || !KEY.test(key)) refuse('Idempotency-Key', 'Expected 1 to 255 visible characters')
  const { type, id, organization } = principalOf(request)
  const text = JSON.stringify([request.method, request.url.split('?', 1)[0], request.body ?? null])
  return {
    owner: { organization_id: organization.id, principal: `${type}:${id}`, key: sha256(`name ${key}`).toString('hex') },
    mac: hmac(secretKey(sha256(`request ${key}`)), text)
  }
}

function replay (reply: FastifyReply, { mac }: Asked, { request, status, answer }: KnownAnswer): FastifyReply {
  if (!sameBytes(mac, request)) fail('idempotency_key_reused')
  return reply.code(status).header('idempotent-replayed', 'true').send((answer as { body: object | null }).body)
}
