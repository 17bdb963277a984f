import { EncryptionKeyAnswer, KeyHistoryAnswer } from '../../schemas/encryption-keys.ts'
import { ProjectParams } from '../../schemas/projects.ts'
import { ListQuery } from '../../schemas/shapes.ts'
import { actorOf } from '../http/actor.ts'
import { principalOf, requireInside } from '../http/access.ts'
import type { Domain } from '../http/types.ts'
import { recordEvent } from '../repositories/audit.ts'
import { findActiveKey, listKeys } from '../repositories/encryption-keys.ts'
import { findProject } from '../repositories/projects.ts'
import { fail } from '../rules/errors.ts'
import { pageMeta, pageOf } from '../rules/pagination.ts'
import { describeKey, revealKey } from '../vault/descriptors.ts'

export const encryptionKeys: Domain = async (app) => {
  app.get('/:organization/:project/encryption-key', {
    config: { access: 'key:retrieve', audit: 'key.retrieve', errors: ['integrity_error'] },
    schema: {
      operationId: 'getEncryptionKey',
      tags: ['encryption-keys'],
      summary: 'Get the active key: whoever has it can read every document of the project',
      params: ProjectParams,
      response: { 200: EncryptionKeyAnswer }
    },
    handler: async (request) => {
      const key = await findActiveKey(app.db, principalOf(request).organization.id, request.params.project) ?? fail('not_found')
      requireInside(request, key)
      const answer = revealKey(app.keyring, key)
      await recordEvent(app.db, actorOf(request), { action: 'key.retrieve', resource_type: 'encryption-key', resource_id: String(key.id), details: { version: key.version } })
      return answer
    }
  })

  app.get('/:organization/:project/encryption-key/history', {
    config: { access: 'key:retrieve', audit: 'key.retrieve', errors: ['integrity_error'] },
    schema: {
      operationId: 'listEncryptionKeys',
      tags: ['encryption-keys'],
      summary: 'List every key that the project had, the active one first',
      params: ProjectParams,
      querystring: ListQuery,
      response: { 200: KeyHistoryAnswer }
    },
    handler: async (request) => {
      const { organization } = principalOf(request)
      const project = await findProject(app.db, organization.id, request.params.project) ?? fail('not_found')
      requireInside(request, { project_id: project.ulid })
      const page = pageOf(request.query)
      const { rows, total } = await listKeys(app.db, organization.id, request.params.project, page)
      const data = rows.map((key) => describeKey(app.keyring, key))
      await recordEvent(app.db, actorOf(request), { action: 'key.retrieve', resource_type: 'project', resource_id: project.ulid, details: { keys: data.length } })
      return { data, meta: pageMeta(page, total, rows.length) }
    }
  })
}
