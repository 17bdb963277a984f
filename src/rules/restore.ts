/** What a restore stores: the version's content as it is, re-encrypted by the server, or what the client sent. */
export type RestorePlan = 'as_stored' | 're_encrypt' | 'as_sent' | 'content_required_for_old_key' | 'key_proof_mismatch'

export interface RestoreCase {
  managed: 'server' | 'client'
  /** Whether the version is under the project's active key. */
  underActiveKey: boolean
  /** Who holds the key that the version is under. */
  heldBy: 'server' | 'client'
  content: boolean
  proof: 'absent' | 'right' | 'wrong'
}

/**
 * Decides a restore, after retention was checked (S-5.8). Server-managed: as it is under
 * the active key, else re-encrypted. Client-managed: under an old key the client has to send the content with its
 * proof; under the active key a content that is sent all the same needs a right proof and replaces it. In a project
 * that went from client to server, versions under an old key of the client need their content, too; there the server
 * can see by itself that it opens.
 */
export function planRestore ({ managed, underActiveKey, heldBy, content, proof }: RestoreCase): RestorePlan {
  if (managed === 'server') {
    if (underActiveKey) return 'as_stored'
    if (heldBy === 'server') return 're_encrypt'
    return content ? 'as_sent' : 'content_required_for_old_key'
  }
  if (!underActiveKey && !content) return 'content_required_for_old_key'
  if (proof === 'wrong' || (content && proof === 'absent')) return 'key_proof_mismatch'
  return content ? 'as_sent' : 'as_stored'
}
