import type { CREDENTIALS } from '../../../schemas/last-change.ts'

// The author of a version, with the names at that time; null for an operator.

interface Credential {
  created_through: (typeof CREDENTIALS)[number] | null
  application_name: string | null
}

/** The columns of the author. */
export interface Author extends Credential {
  created_by_id: number | null
  created_by_name: string | null
}

/** The credential of the author in a new row. `application` is the name of the application of a user. */
export function credentialOf ({ type, application }: { type: string, application?: string | undefined }): Credential {
  if (application !== undefined) return { created_through: 'application', application_name: application }
  return { created_through: type === 'api_token' || type === 'workload' ? type : null, application_name: null }
}

/** `created_by` and `created_through` in a response. */
export function shownAuthor ({ created_by_id: id, created_by_name, created_through: type, application_name }: Author) {
  const name = created_by_name ?? ''
  return {
    created_by: id === null ? null : { id, name },
    created_through: type === null ? null : { type, name: application_name ?? name }
  }
}
