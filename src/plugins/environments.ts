import { ulid } from 'ulidx'
import {
  CreateEnvironmentBody, Environment, EnvironmentParams, UpdateEnvironmentBody
} from '../../schemas/environments.ts'
import { ListQuery, NoContent } from '../../schemas/shapes.ts'
import { TargetParams } from '../../schemas/targets.ts'
import type { Db } from '../db/database.ts'
import { actorOf, principalOf } from '../http/actor.ts'
import { inLevel, levelOf } from '../http/places.ts'
import { chooseSlug, orSlugTaken, refuseReserved } from '../http/slugs.ts'
import type { Domain } from '../http/types.ts'
import { recordEvent } from '../repositories/audit.ts'
import {
  createEnvironment, deleteEnvironment, findEnvironment, listEnvironments, updateEnvironment, type EnvironmentRow
} from '../repositories/environments.ts'
import { fail } from '../rules/errors.ts'
import { pageMeta, pageOf } from '../rules/pagination.ts'
import { deleteLevel, deletionRunner } from '../vault/removals.ts'

const toItem = ({ id, ...attributes }: EnvironmentRow) => ({ type: 'environments' as const, id, attributes })

async function findItem (db: Db, organizationId: string, id: string) {
  const row = await findEnvironment(db, organizationId, id)
  return row && toItem(row)
}

export const environments: Domain = async (app) => {
  app.get('/:organization/:project/:target/environments', {
    config: {
      access: 'environment:read',
      at: 'target',
      formerly: '/organizations/:organization/projects/:project/targets/:target/environments'
    },
    schema: {
      operationId: 'listEnvironments',
      tags: ['environments'],
      summary: 'List environments of a target',
      params: TargetParams,
      querystring: ListQuery,
      response: { 200: Environment.list }
    },
    handler: async (request) => {
      const { organization_id, level_id } = levelOf(request)
      const page = pageOf(request.query)
      const { rows, total } = await listEnvironments(app.pages, organization_id, level_id, page)
      return { data: rows.map(toItem), meta: pageMeta(page, total, rows.length) }
    }
  })

  app.get('/:organization/:project/:target/:environment', {
    config: {
      access: 'environment:read',
      at: 'environment',
      tagged: true,
      formerly: '/organizations/:organization/projects/:project/targets/:target/environments/:environment'
    },
    schema: {
      operationId: 'getEnvironment',
      tags: ['environments'],
      summary: 'Get an environment',
      params: EnvironmentParams,
      response: { 200: Environment.one }
    },
    handler: async (request) => {
      const { organization_id, level_id } = levelOf(request)
      return { data: await findItem(app.reads, organization_id, level_id) ?? fail('not_found') }
    }
  })

  app.post('/:organization/:project/:target/environments', {
    config: {
      access: 'environment:create', at: 'target', tagged: true, audit: 'environment.create', errors: ['slug_taken']
    },
    schema: {
      operationId: 'createEnvironment',
      tags: ['environments'],
      summary: 'Create an environment',
      params: TargetParams,
      body: CreateEnvironmentBody,
      response: { 201: Environment.one }
    },
    handler: async (request, reply) => {
      const { body } = request
      refuseReserved('environment', body.slug)
      const created = await orSlugTaken(() => inLevel(app, request, async (
        db, { organization_id, project, level_id: target_id }
      ) => {
        const slug = await chooseSlug(db, 'environment', { organization_id, target_id }, body)
        const id = ulid()
        const status = body.status ?? 'development'
        await createEnvironment(db, {
          id,
          organization_id,
          project_id: project.id,
          target_id,
          name: body.name,
          slug,
          description: body.description ?? null,
          status,
          is_production: body.is_production ?? status === 'production'
        })
        const event = { action: 'environment.create', resource_type: 'environment', resource_id: id } as const
        await recordEvent(db, actorOf(request), { ...event, details: { slug } })
        return findEnvironment(db, organization_id, id)
      }))
      return reply.code(201).send({ data: toItem(created!) })
    }
  })

  app.patch('/:organization/:project/:target/:environment', {
    config: {
      access: 'environment:update',
      at: 'environment',
      put: true,
      tagged: true,
      changes: findItem,
      audit: 'environment.update',
      errors: ['slug_taken']
    },
    schema: {
      operationId: 'updateEnvironment',
      tags: ['environments'],
      summary: 'Change an environment; what is left out stays',
      params: EnvironmentParams,
      body: UpdateEnvironmentBody,
      response: { 200: Environment.one }
    },
    handler: async (request) => {
      const { body } = request
      refuseReserved('environment', body.slug)
      const updated = await orSlugTaken(() => inLevel(app, request, async (db, { organization_id, level_id: id }) => {
        const { name, slug, description, status, is_production } = body
        await updateEnvironment(db, organization_id, id, { name, slug, description, status, is_production })
        const event = { action: 'environment.update', resource_type: 'environment', resource_id: id } as const
        await recordEvent(db, actorOf(request), { ...event, details: { members: Object.keys(body).join(' ') } })
        return findEnvironment(db, organization_id, id)
      }))
      return { data: toItem(updated!) }
    }
  })

  app.delete('/:organization/:project/:target/:environment', {
    config: {
      access: 'environment:delete',
      at: 'environment',
      changes: findItem,
      audit: ['environment.delete', 'api-token.delete']
    },
    schema: {
      operationId: 'deleteEnvironment',
      tags: ['environments'],
      summary: 'Delete an environment with its document and history',
      params: EnvironmentParams,
      response: { 204: NoContent }
    },
    handler: async (request, reply) => {
      const below = { environment_id: levelOf(request).environment!.id }
      await inLevel(app, request, async (db, { organization_id, environment }) => {
        const event = {
          action: 'environment.delete', resource_type: 'environment', resource_id: environment!.id
        } as const
        await deleteLevel(db, actorOf(request), below, event, ({ documents }) =>
          deleteEnvironment(db, organization_id, environment!, documents))
      }, deletionRunner(app, { organization: principalOf(request).organization, actor: actorOf(request), below }))
      app.removals.wake()
      return reply.code(204).send(null)
    }
  })
}
