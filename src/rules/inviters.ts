export interface NamedInviter { type: 'user' | 'api_token', name: string }

/** The inviter as a phrase: the user's name, `the API token NAME`, or `the operator` for null. */
export function inviterOf (inviter: NamedInviter | null): string {
  if (inviter === null) return 'the operator'
  return inviter.type === 'user' ? inviter.name : `the API token ${inviter.name}`
}
