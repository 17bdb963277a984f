import texts from '../dist/openapi-operations.json'
import type { operations } from '../dist/openapi-types.d.ts'

/** All operations that the console calls. */
export const OPERATIONS = [
  'getUser', 'listOwnInvitations', 'acceptInvitation', 'declineInvitation', 'createOrganization',
  'deleteOrganization', 'listProjects', 'createProject', 'updateProject', 'deleteProject', 'searchNames',
  'createTarget', 'deleteTarget', 'createEnvironment', 'deleteEnvironment', 'readProjectMatrix', 'retrieveSecrets',
  'storeSecrets', 'deleteSecrets', 'readProjectSecrets', 'readTargetSecrets', 'readEnvironmentSecrets',
  'changeProjectSecrets', 'changeTargetSecrets', 'changeEnvironmentSecrets', 'readProjectNames', 'readTargetNames',
  'readEnvironmentNames', 'readProjectNameHistory', 'readTargetNameHistory', 'readEnvironmentNameHistory',
  'compareProjectSecrets', 'compareTargetSecrets', 'compareEnvironmentSecrets', 'listVersions', 'getVersion',
  'readVersionNames', 'restoreVersion', 'purgeVersions', 'restoreProject', 'getEncryptionKey', 'listEncryptionKeys',
  'rotateEncryptionKey', 'rotateClientKeys', 'listPendingVersions', 'reEncryptHistory', 'listApiTokens',
  'createApiToken', 'rotateApiToken', 'deleteApiToken', 'listWorkloads', 'createWorkload', 'getWorkload', 'updateWorkload', 'deleteWorkload',
  'testWorkload', 'listMembers', 'inviteMember', 'updateMember', 'removeMember',
  'getMemberAccess', 'listInvitations', 'withdrawInvitation', 'sendInvitation', 'listTeams', 'createTeam', 'getTeam',
  'deleteTeam', 'addTeamMember', 'removeTeamMember', 'setTeamProject', 'removeTeamProject', 'listAuditEvents',
  'countAuditEvents', 'exportAuditEvents', 'getUsage', 'getSubscription', 'listInvoices'
] as const satisfies readonly (keyof operations)[]
export type Operation = typeof OPERATIONS[number]

/** The method and the path of an operation in openapi.yaml, such as `GET /api/v1/user`. */
export const textOf = (operation: Operation): string => texts[operation]
