/** Who made an invitation: a person or an API token. */
export interface NamedInviter { type: 'user' | 'api_token', name: string }

/** The inviter inside a sentence: the name of the person, the API token by its name, or (null) the operator. */
export function inviterOf (inviter: NamedInviter | null): string {
  if (inviter === null) return 'the operator'
  return inviter.type === 'user' ? inviter.name : `the API token ${inviter.name}`
}
