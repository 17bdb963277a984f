import { ulid } from 'ulidx'
import {
  CreateOrganizationBody, DeleteOrganizationBody, FORMER_SLUG_DAYS, OrganizationAnswer, OrganizationList,
  UpdateOrganizationBody
} from '../../schemas/organizations.ts'
import { ListQuery, NoContent } from '../../schemas/shapes.ts'
import { change } from '../changes/change.ts'
import { changeThatCreates } from '../changes/creation.ts'
import type { Db } from '../db/database.ts'
import { actorOf, personOf, principalOf } from '../http/routes/actor.ts'
import { requireSecondFactor } from '../http/guard/access.ts'
import { requireConfirmation } from '../http/routes/requirements.ts'
import { requireCurrent } from '../http/repeats/etags.ts'
import { chooseSlug, orSlugTaken, slugRule } from '../http/routes/slugs.ts'
import type { Domain } from '../http/routes/types.ts'
import { eventOf } from '../repositories/audit/audit.ts'
import { endUnsentCharges } from '../repositories/billing/invoices.ts'
import {
  deleteOrganization, listOrganizations, lockEverybody, readOrganization, updateOrganization,
  type ShownOrganization
} from '../repositories/levels/organizations.ts'
import { fail } from '../rules/api-error.ts'
import { requireNewName } from '../rules/formats/names.ts'
import { pageMeta, pageOf } from '../rules/pagination.ts'
import { foundOrganization } from '../vault/organizations.ts'

export const organizations: Domain = async (app) => {
  app.get('/organizations/:organization', {
    config: { access: 'organization:read', whenInactive: true, etag: true },
    schema: {
      operationId: 'getOrganization',
      summary: 'Get an organization',
      description: 'The path takes the id or the slug, here and in all operations of an organization.',
      response: { 200: OrganizationAnswer }
    },
    handler: async (request) => toAnswer(principalOf(request).organization)
  })

  app.get('/organizations', {
    config: { access: 'authenticated', whenInactive: true },
    schema: {
      operationId: 'listOrganizations',
      summary: 'List the organizations that the caller can access',
      description: 'An API token has exactly one; a user has one for each membership.',
      querystring: ListQuery,
      response: { 200: OrganizationList }
    },
    handler: async (request) => {
      const page = pageOf(request.query)
      const { rows, total } = request.user === null
        ? { rows: [principalOf(request).organization], total: 1 }
        : await listOrganizations(app.db, request.user.user.id, page)
      const shown = request.user === null && page.page > 1 ? [] : rows
      return { data: shown.map((row) => toAnswer(row).data), meta: pageMeta(page, total, shown.length) }
    }
  })

  app.post('/organizations', {
    config: {
      access: 'organization:create',
      etag: true,
      // An API token belongs to one organization and cannot own another.
      rules: [{ reads: [], check: ({ user }) => { if (user === null) fail('user_required') } }, slugRule('organization')],
      audit: 'organization.create',
      errors: ['user_required', 'slug_taken', 'organization_limit_reached']
    },
    schema: {
      operationId: 'createOrganization',
      summary: 'Create an organization; the caller must be a user and becomes its owner',
      description: 'The slug is made from the name unless you send one.',
      body: CreateOrganizationBody,
      response: { 201: OrganizationAnswer }
    },
    handler: async (request, reply) => {
      const { id: access_token, user } = request.user!
      const { body } = request
      const id = ulid()
      // The caller's access token and new membership must be valid when the change commits.
      const caller = { access_token, user_id: user.id, role: 'owner' } as const
      const actor = { ...personOf(request, id, user), caller, answering: request.answering, waited: request.waited }
      const created = await orSlugTaken(() => changeThatCreates(app.db, actor, {
        load: async (db) => chooseSlug(db, 'organization', undefined, body),
        decide: (slug) => ({
          async write (db, lockCounter) {
            const organization = { id, name: body.name, slug, plan: app.config.defaultPlan }
            const founded = await foundOrganization(db, app.keyring, organization, lockCounter, user.id)
            if (typeof founded === 'number') return fail('organization_limit_reached', { limit: founded })
            return { organization: await readOrganization(db, id) ?? fail('not_found'), founded }
          },
          events: ({ founded }) => [...founded, eventOf('organization.create', id, { slug })],
          answer: ({ organization }) => ({ status: 201, body: toAnswer(organization) })
        })
      }))
      return reply.code(201).send(created.body)
    }
  })

  app.patch('/organizations/:organization', {
    config: {
      access: 'organization:update',
      at: 'organization',
      etag: true,
      changes: findItem,
      rules: [slugRule('organization')],
      audit: 'organization.update',
      errors: ['slug_taken', 'limit_reached']
    },
    schema: {
      operationId: 'updateOrganization',
      summary: 'Change an organization; omitted fields stay unchanged',
      description: 'A new slug changes all paths of the organization; the former slug is 404.',
      body: UpdateOrganizationBody,
      response: { 200: OrganizationAnswer }
    },
    handler: async (request) => {
      const { id } = principalOf(request).organization
      const { body } = request
      // Users without a second factor must not lock themselves out or remove the requirement.
      if (body.require_second_factor !== undefined) requireSecondFactor(app, principalOf(request))
      const updated = await orSlugTaken(() => change(app.db, actorOf(request), {
        async load (db) {
          await requireCurrent(db, request, id)
          await requireNewName(body.name, async () => (await readOrganization(db, id))?.name)
        },
        decide: () => ({
          async write (db) {
            const { name, slug, require_second_factor } = body
            await updateOrganization(db, id, { name, slug, require_second_factor })
            return await readOrganization(db, id) ?? fail('not_found')
          },
          events: [eventOf('organization.update', id, { members: Object.keys(body).join(' ') })],
          answer: (organization) => ({ body: toAnswer(organization) })
        })
      }))
      return updated.body
    }
  })

  app.delete('/organizations/:organization', {
    config: {
      access: 'organization:delete',
      at: 'organization',
      changes: findItem,
      audit: 'organization.delete',
      errors: ['confirmation_required']
    },
    schema: {
      operationId: 'deleteOrganization',
      summary: 'Delete an organization with everything in it; its audit log is kept, and its slug stays reserved for ' +
        `${FORMER_SLUG_DAYS} days`,
      description: 'It cannot be undone, so the body must have `"confirmed": true`.',
      body: DeleteOrganizationBody,
      response: { 204: NoContent }
    },
    preValidation: requireConfirmation,
    handler: async (request, reply) => {
      const { id } = principalOf(request).organization
      await change(app.db, actorOf(request), {
        async load (db) {
          const ended = await lockEverybody(db, id)
          await requireCurrent(db, request, id)
          return ended
        },
        decide: ({ members, tokens }) => ({
          async write (db, lockCounter) {
            await endUnsentCharges(db, id)
            await deleteOrganization(db, id, principalOf(request).person?.user_id)
            return (await lockCounter()).stored_bytes
          },
          events: (bytes) => [{ ...eventOf('organization.delete', id, { members, tokens }), growth: -bytes }]
        })
      })
      app.removals.wake()
      return reply.code(204).send(null)
    }
  })

  app.get('/organization', {
    config: { access: 'authenticated', whenInactive: true, etag: true, errors: ['organization_required'] },
    schema: {
      operationId: 'getOwnOrganization',
      summary: 'Get the organization of the API token',
      description: 'For clients that know only their token. A user has to name the organization in the path.',
      response: { 200: OrganizationAnswer }
    },
    handler: async (request) =>
      request.principal === null ? fail('organization_required') : toAnswer(request.principal.organization)
  })
}

async function findItem (db: Db, id: string) {
  const found = await readOrganization(db, id)
  return found && toAnswer(found).data
}

function toAnswer ({
  id, name, slug, status, plan, require_second_factor, created_at, updated_at
}: ShownOrganization): OrganizationAnswer {
  const attributes = {
    ulid: id, name, slug, status, plan_name: plan.name, require_second_factor, created_at, updated_at
  }
  return { data: { type: 'organizations', id, name, slug, status, attributes } }
}
