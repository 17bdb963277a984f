/**
 * Who made an invitation, inside a sentence: the name of the person, the API token by its name, or (null) the operator.
 */
export function inviterOf (inviter: { type: 'user' | 'api_token', name: string } | null): string {
  if (inviter === null) return 'the operator'
  return inviter.type === 'user' ? inviter.name : `the API token ${inviter.name}`
}
