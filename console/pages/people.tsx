import { useState } from 'preact/hooks'
import { call, firstPages, type Schemas } from '../api.ts'
import { chosenPart, partInWords, PartPicker } from '../part-picker.tsx'
import { go } from '../router.ts'
import { scopesOfRoles, wordsOfScopes } from '../scopes.ts'
import { loadPerson, person, ROLES, roleName } from '../session.ts'
import { Act, changed, Danger, Field, Form, Help, Later, List, saying, Section, Show, Table, Time, useList, useLoad, type Fields } from '../ui.tsx'

type Role = Schemas['Role']
type Member = Schemas['Member']
type Restriction = Schemas['TeamRestriction']

const ROLE_OPTIONS = Object.entries(ROLES)
/** Roles in projects: billing managers and guests have nothing to do there. */
const PROJECT_ROLES = ROLE_OPTIONS.filter(([role]) => role !== 'billing_manager' && role !== 'guest')

/** Members, invitations and teams of the organization. */
export function PeoplePage ({ organization }: { organization: string }) {
  const path = { organization }
  const members = useList(async (page) => (await call('listMembers', { path, query: { page, per_page: 50 } })).data)
  return (
    <>
      <h1>People</h1>
      <Help of='role' />
      <Section title='Members'>
        <List of={members} empty='Nobody is a member.'>
          {(found) => <ul class='list'>{found.map((member) => <MemberItem key={member.id} {...{ organization, member }} />)}</ul>}
        </List>
      </Section>
      <Invitations organization={organization} />
      <Section title='Teams'>
        <Help of='team' />
        <Later name='team.list'><Teams organization={organization} /></Later>
      </Section>
    </>
  )
}

function Teams ({ organization }: { organization: string }) {
  const path = { organization }
  const teams = useList(async (page) => (await call('listTeams', { path, query: { page, per_page: 50 } })).data)
  const create = async ({ name = '' }: Fields) =>
    saying(call('createTeam', { path, body: { name }, dangerous: ['team:create'] }), `Created the team ${name}.`)
  return (
    <>
      <List of={teams} empty='There is no team yet. Create one to give people a role in single projects.'>
        {(found) => <ul class='list'>{found.map((team) => <TeamItem key={team.id} {...{ organization, team }} reloadTeams={teams.reload} />)}</ul>}
      </List>
      <Form name='team.create' run={create}><Field label='Name of the team' name='name' required /></Form>
    </>
  )
}

function MemberItem ({ organization, member: { id, attributes: { name, email, role: before, joined_at } } }: {
  organization: string, member: Member
}) {
  const path = { organization, member: id }
  const change = async ({ role = '' }: Fields) => {
    await call('updateMember', { path, body: { role: role as Role }, dangerous: scopesOfRoles('member:update', before, role) })
    if (id === person.value?.id) await loadPerson()
    changed(`${name} is ${roleName(role)} now.`)
  }
  const remove = async () => {
    await call('removeMember', { path, dangerous: scopesOfRoles('member:delete', before) })
    if (id === person.value?.id) { await loadPerson(); return go({}) }
    changed(`${name} is no member any more.`)
  }
  return (
    <li>
      <p><strong>{name}</strong> {email}{id === person.value?.id && ' (you)'}: {ROLES[before]}. Member since <Time at={joined_at} />.</p>
      <Access organization={organization} member={id} name={name} />
      <details>
        <summary>Change or remove<span class='hidden'> {name}</span></summary>
        <Form name='member.role' run={change}><Field label={`Role of ${name}`} name='role' value={before} options={ROLE_OPTIONS} /></Form>
        <Danger name='member.remove' title={`Remove ${name}?`} description={name} run={remove}>
          <p>{name} loses all access to this organization at once. The tokens that {name} made end, too.</p>
        </Danger>
      </details>
    </li>
  )
}

const placesOf = (restrictions: readonly Restriction[]): string => restrictions.length === 0
  ? 'the whole project'
  : restrictions.map((part) => partInWords(part.target === undefined ? 'the project' : '', part)).join('; ')

/** What a member can see and do, by the role in the organization and by teams. */
function Access ({ organization, member, name }: { organization: string, member: string, name: string }) {
  const [access, setAccess] = useState<Schemas['MemberAccessAttributes']>()
  const [page, setPage] = useState(1)
  const show = async () => {
    const { data } = await call('getMemberAccess', { path: { organization, member }, query: { page, per_page: 25 } })
    const { attributes } = data.data
    setAccess({ ...attributes, projects: [...access?.projects ?? [], ...attributes.projects] })
    setPage(page < data.meta.last_page ? page + 1 : 0)
  }
  if (access === undefined) return <Act name='member.access' description={name} run={show} />
  return (
    <div class='preview'>
      <h3>What {name} can see</h3>
      <p>In every project, as {roleName(access.role)}: {wordsOfScopes(access.scopes)}.</p>
      {access.projects.length > 0 && (
        <Table
          label={`Projects of ${name}`} head={['Project', 'Through the team', 'May', 'Where']}
          rows={access.projects.flatMap((project) => project.rights.map(({ scopes, restrictions }, i) => [
            `${project.id} ${i}`, project.name, project.teams.map((team) => `${team.name}, as ${roleName(team.role)}`).join('; '),
            wordsOfScopes(scopes), placesOf(restrictions)
          ] as const))}
        />
      )}
      {page > 0 && <Act name='member.access' label='Show more projects' run={show} />}
    </div>
  )
}

function Invitations ({ organization }: { organization: string }) {
  const path = { organization }
  const invitations = useList(async (page) => (await call('listInvitations', { path, query: { page, per_page: 50 } })).data)
  const invite = async ({ email = '', role = '' }: Fields) =>
    saying(call('inviteMember', { path, body: { email, role: role as Role }, dangerous: scopesOfRoles('member:create', role) }))
  const send = (invitation: string, role: Role) => async () =>
    saying(call('sendInvitation', { path: { ...path, invitation }, body: {}, dangerous: scopesOfRoles('member:create', role) }))
  const withdraw = (invitation: string, email: string) => async () =>
    saying(call('withdrawInvitation', { path: { ...path, invitation }, dangerous: ['member:delete'] }), `The invitation of ${email} is withdrawn.`)
  return (
    <Section title='Invitations'>
      <List of={invitations} empty='No invitation is open.'>
        {(found) => (
          <Table
            label='Open invitations' head={['Address', 'Role', 'Until', 'Change']}
            rows={found.map(({ id, attributes: { email, role, expires_at } }) => [
              id, email, roleName(role), <Time at={expires_at} />, (
              <>
                <Act name='invitation.send' description={email} run={send(id, role)} />
                <Act name='invitation.withdraw' description={email} run={withdraw(id, email)} />
              </>
              )])}
          />
        )}
      </List>
      <Form name='member.invite' run={invite}>
        <Field label='E-mail address' name='email' type='email' required />
        <Field label='Role in the organization' name='role' value='member' options={ROLE_OPTIONS} />
      </Form>
    </Section>
  )
}

function TeamItem ({ organization, team: { id, attributes: { name, member_count, project_count } }, reloadTeams }: {
  organization: string, team: Schemas['Team'], reloadTeams: () => Promise<void>
}) {
  return (
    <li>
      <p><strong>{name}</strong>, {member_count} members, {project_count} projects</p>
      <Later name='team.show' description={name}><OpenTeam {...{ organization, id, name, reloadTeams }} /></Later>
    </li>
  )
}

/** The members and projects of a team. */
function OpenTeam ({ organization, id, name, reloadTeams }: Record<'organization' | 'id' | 'name', string> & { reloadTeams: () => Promise<void> }) {
  const path = { organization, team: id }
  const dangerous = ['team:update']
  const loaded = useLoad(async () => {
    const team = (await call('getTeam', { path })).data.data.attributes
    const all = await firstPages(async (page) =>
      (await call('listMembers', { path: { organization }, query: { page, per_page: 100 } })).data)
    return { ...team, others: all.found.filter((member) => team.members.every(({ id }) => id !== member.id)) }
  }, [])
  const setProject = async ({ project = '', role = '', ...fields }: Fields) => {
    if (project === '') throw new Error('Choose a project first.')
    const restriction = chosenPart(fields)
    await saying(call('setTeamProject', {
      path: { ...path, project },
      dangerous,
      body: { role: role as Schemas['ProjectRole'], restrictions: Object.keys(restriction).length === 0 ? [] : [restriction] }
    }), `${name} has a role in ${project} now.`)
  }
  const addMember = async ({ member = '' }: Fields) =>
    saying(call('addTeamMember', { path: { ...path, member }, body: {}, dangerous }), 'Added to the team.')
  const removeMember = (member: string, name: string) => async () =>
    saying(call('removeTeamMember', { path: { ...path, member }, dangerous }), `${name} left the team.`)
  const removeProject = (project: string, name: string) => async () =>
    saying(call('removeTeamProject', { path: { ...path, project }, dangerous }), `The team has no role in ${name} any more.`)
  const remove = async () => { await call('deleteTeam', { path }); await reloadTeams(); changed(`Deleted the team ${name}.`) }
  return (
    <Show of={loaded}>
      {(team) => (
        <div class='preview'>
          <h3>Members of {name}</h3>
          <Table
            label={`Members of ${name}`} head={['Name', 'Address', 'Change']} empty='Nobody yet.'
            rows={team.members.map(({ id, name, email }) => [id, name, email, <Act name='team-member.remove' description={name} run={removeMember(id, name)} />])}
          />
          {team.others.length > 0 && (
            <Form name='team-member.add' run={addMember}>
              <Field label={`Member to add to ${name}`} name='member' options={team.others.map(({ id, attributes }) => [id, `${attributes.name}, ${attributes.email}`])} />
            </Form>
          )}
          <h3>Projects of {name}</h3>
          <Table
            label={`Projects of ${name}`} head={['Project', 'Role', 'Where', 'Change']} empty='No project yet.'
            rows={team.projects.map(({ id, slug, name, role, restrictions }) => [
              id, name, roleName(role), placesOf(restrictions), <Act name='team-project.remove' description={name} run={removeProject(slug, name)} />
            ])}
          />
          <Form name='team-project.set' run={setProject}>
            <PartPicker organization={organization} none='Choose one' />
            <Field label={`Role of ${name} in the project`} name='role' value='developer' options={PROJECT_ROLES} />
            <Field label='Production' name='except_status' options={[['', 'Included'], ['production', 'Without environments in production']]} />
          </Form>
          <Danger name='team.delete' title={`Delete the team ${name}?`} description={name} run={remove}>
            <p>Its members lose the roles that the team gives them.</p>
          </Danger>
        </div>
      )}
    </Show>
  )
}
