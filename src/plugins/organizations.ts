import { OrganizationAnswer, OrganizationParams } from '../../schemas/organizations.ts'
import { principalOf } from '../http/access.ts'
import type { Domain } from '../http/types.ts'
import type { Organization } from '../repositories/tokens.ts'

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

  app.get('/organization', {
    config: { access: 'authenticated', whenInactive: true },
    schema: {
      operationId: 'getOwnOrganization',
      tags: ['organizations'],
      summary: 'Get the organization of the API token',
      response: { 200: OrganizationAnswer }
    },
    handler: async (request) => toAnswer(principalOf(request).organization)
  })
}

function toAnswer ({ id, name, slug, status, plan, created_at, updated_at }: Organization): OrganizationAnswer {
  const attributes = { ulid: id, name, slug, status, plan_name: plan.name, created_at, updated_at }
  return { data: { type: 'organizations', id, name, slug, status, attributes } }
}
