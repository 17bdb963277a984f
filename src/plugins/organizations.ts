import { OrganizationAnswer, OrganizationList, OrganizationParams } from '../../schemas/organizations.ts'
import { principalOf } from '../http/actor.ts'
import { ListQuery } from '../../schemas/shapes.ts'
import type { Domain } from '../http/types.ts'
import { listOrganizations } from '../repositories/organizations.ts'
import type { Organization } from '../repositories/principals.ts'
import { fail } from '../rules/errors.ts'
import { pageMeta, pageOf } from '../rules/pagination.ts'

export const organizations: Domain = async (app) => {
  app.get('/organizations/:organization', {
    config: { access: 'organization:read', whenInactive: true },
    schema: {
      operationId: 'getOrganization',
      tags: ['organizations'],
      summary: 'Get an organization',
      params: OrganizationParams,
      response: { 200: OrganizationAnswer }
    },
    handler: async (request) => toAnswer(principalOf(request).organization)
  })

  app.get('/organizations', {
    config: { access: 'authenticated', whenInactive: true },
    schema: {
      operationId: 'listOrganizations',
      tags: ['organizations'],
      summary: 'List the organizations that the caller can access',
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

  app.get('/organization', {
    config: { access: 'authenticated', whenInactive: true, errors: ['organization_required'] },
    schema: {
      operationId: 'getOwnOrganization',
      tags: ['organizations'],
      summary: 'Get the organization of the API token',
      response: { 200: OrganizationAnswer }
    },
    handler: async (request) =>
      request.principal === null ? fail('organization_required') : toAnswer(request.principal.organization)
  })
}

function toAnswer ({
  id, name, slug, status, plan, created_at, updated_at
}: Omit<Organization, 'storage_key'>): OrganizationAnswer {
  const attributes = { ulid: id, name, slug, status, plan_name: plan.name, created_at, updated_at }
  return { data: { type: 'organizations', id, name, slug, status, attributes } }
}
