import { useState } from 'preact/hooks'
import { call, type Schemas } from '../api.ts'
import { scopesOfRoles, wordsOfScopes } from '../scopes.ts'
import { person, ROLES, roleName } from '../session.ts'
import { Act, changed, Danger, Empty, Field, Form, Help, Pages, Section, Show, Table, Time, useLoad, type Fields, type Loaded } from '../ui.tsx'

type Role = Schemas['Role']
type Member = Schemas['Member']
type Restriction = Schemas['TeamRestriction']

const ROLE_OPTIONS = Object.entries(ROLES)
/** Roles in projects: a billing manager has nothing to do there. */
const PROJECT_ROLES = ROLE_OPTIONS.filter(([role]) => role !== 'billing_manager')

/** Members, invitations and teams of the organization. */
export function PeoplePage ({ organization }: { organization: string }) {
  const [page, setPage] = useState(1)
  const [isOpen, setOpen] = useState(false)
  const path = { organization }
  const members = useLoad(async () => (await call('listMembers', { path, query: { page, per_page: 50 } })).data, [page])
  const invitations = useLoad(async () => (await call('listInvitations', { path, query: { per_page: 100 } })).data.data, [])
  return (
    <>
      <h1>People</h1>
      <Help of='role' />
      <Section title='Members'>
        <Show of={members}>
          {({ data, meta }) => (
            <>
              <ul class='list'>
                {data.map((member) => <MemberItem key={member.id} organization={organization} member={member} />)}
              </ul>
              <Pages meta={meta} set={setPage} />
            </>
          )}
        </Show>
      </Section>
      <Invitations organization={organization} invitations={invitations} />
      <Section title='Teams'>
        <Help of='team' />
        {isOpen
          ? <Teams organization={organization} members={members.value?.data ?? []} />
          : <Act name='team.list' run={() => setOpen(true)} />}
      </Section>
    </>
  )
}

function Teams ({ organization, members }: { organization: string, members: readonly Member[] }) {
  const path = { organization }
  const teams = useLoad(async () => (await call('listTeams', { path, query: { per_page: 100 } })).data.data, [])
  const create = async ({ name = '' }: Fields) => {
    await call('createTeam', { path, body: { name }, dangerous: ['team:create'] })
    changed(`Created the team ${name}.`)
  }
  return (
    <>
      <Show of={teams} empty='There is no team yet. Create one to give people a role in single projects.'>
        {(found) => (
          <ul class='list'>{found.map((team) => <TeamItem key={team.id} organization={organization} team={team} members={members} />)}</ul>
        )}
      </Show>
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
    changed(`${name} is ${roleName(role)} now.`)
  }
  const remove = async () => {
    await call('removeMember', { path, dangerous: scopesOfRoles('member:delete', before) })
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

const placeOf = ({ target, environment, except_status }: Restriction): string =>
  [target ?? 'the project', environment].filter(Boolean).join(' / ') + (except_status === undefined ? '' : `, but not ${except_status}`)
const placesOf = (restrictions: readonly Restriction[]): string =>
  restrictions.length === 0 ? 'the whole project' : restrictions.map(placeOf).join('; ')

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
        <Table label={`Projects of ${name}`} head={['Project', 'Through the team', 'May', 'Where']}>
          {access.projects.flatMap((project) => project.rights.map(({ scopes, restrictions }, i) => (
            <tr key={`${project.id} ${i}`}>
              <th scope='row'>{project.name}</th>
              <td>{project.teams.map((team) => `${team.name}, as ${roleName(team.role)}`).join('; ')}</td>
              <td>{wordsOfScopes(scopes)}</td><td>{placesOf(restrictions)}</td>
            </tr>
          )))}
        </Table>
      )}
      {page > 0 && <Act name='member.access' label='Show more projects' run={show} />}
    </div>
  )
}

function Invitations ({ organization, invitations }: { organization: string, invitations: Loaded<Schemas['Invitation'][]> }) {
  const invite = async ({ email = '', role = '' }: Fields) => {
    const { data } = await call('inviteMember', { path: { organization }, body: { email, role: role as Role }, dangerous: scopesOfRoles('member:create', role) })
    changed(data.message)
  }
  const send = (id: string, role: Role) => async () => {
    const { data } = await call('sendInvitation', { path: { organization, invitation: id }, body: {}, dangerous: scopesOfRoles('member:create', role) })
    changed(data.message)
  }
  const withdraw = (id: string, email: string) => async () => {
    await call('withdrawInvitation', { path: { organization, invitation: id } })
    changed(`The invitation of ${email} is withdrawn.`)
  }
  return (
    <Section title='Invitations'>
      <Show of={invitations} empty='No invitation is open.'>
        {(found) => (
            <Table label='Open invitations' head={['Address', 'Role', 'Until', 'Change']}>
              {found.map(({ id, attributes: { email, role, expires_at } }) => (
                <tr key={id}>
                  <th scope='row'>{email}</th><td>{roleName(role)}</td><td><Time at={expires_at} /></td>
                  <td>
                    <Act name='invitation.send' description={email} run={send(id, role)} />
                    <Act name='invitation.withdraw' description={email} run={withdraw(id, email)} />
                  </td>
                </tr>
              ))}
            </Table>
        )}
      </Show>
      <Form name='member.invite' run={invite}>
        <Field label='E-mail address' name='email' type='email' required />
        <Field label='Role in the organization' name='role' value='member' options={ROLE_OPTIONS} />
      </Form>
    </Section>
  )
}

const CHANGE = ['team:update']

function TeamItem ({ organization, team: { id, attributes: { name, member_count, project_count } }, members }: {
  organization: string, team: Schemas['Team'], members: readonly Member[]
}) {
  const [team, setTeam] = useState<Schemas['WholeTeamAttributes']>()
  const path = { organization, team: id }
  const show = async () => setTeam((await call('getTeam', { path })).data.data.attributes)
  const after = async (text: string) => { await show(); changed(text) }
  const setProject = async ({ project = '', role = '', target = '', environment = '', except_status = '' }: Fields) => {
    const restriction = {
      ...(target !== '' && { target }), ...(environment !== '' && { environment }), ...(except_status !== '' && { except_status: 'production' as const })
    }
    await call('setTeamProject', {
      path: { ...path, project },
      dangerous: CHANGE,
      body: { role: role as Exclude<Role, 'billing_manager'>, restrictions: Object.keys(restriction).length === 0 ? [] : [restriction] }
    })
    await after(`${name} has a role in ${project} now.`)
  }
  const remove = async () => {
    await call('deleteTeam', { path })
    changed(`Deleted the team ${name}.`)
  }
  return (
    <li>
      <p><strong>{name}</strong>, {member_count} members, {project_count} projects</p>
      {team === undefined
        ? <Act name='team.show' description={name} run={show} />
        : (
          <div class='preview'>
            <h3>Members of {name}</h3>
            {team.members.length === 0 && <Empty>Nobody yet.</Empty>}
            <ul class='list'>
              {team.members.map((member) => (
                <li key={member.id}>
                  {member.name}, {member.email} <Act
                    name='team-member.remove' description={member.name}
                    run={async () => { await call('removeTeamMember', { path: { ...path, member: member.id }, dangerous: CHANGE }); await after(`${member.name} left the team.`) }}
                  />
                </li>
              ))}
            </ul>
            <Form name='team-member.add' run={async ({ member = '' }) => { await call('addTeamMember', { path: { ...path, member }, body: {}, dangerous: CHANGE }); await after('Added to the team.') }}>
              <Field label={`Member to add to ${name}`} name='member' options={members.map(({ id, attributes }) => [id, `${attributes.name}, ${attributes.email}`])} />
            </Form>
            <h3>Projects of {name}</h3>
            {team.projects.length === 0 && <Empty>No project yet.</Empty>}
            <ul class='list'>
              {team.projects.map(({ id, slug, name: project, role, restrictions }) => (
                <li key={id}>
                  {project}: {roleName(role)} in {placesOf(restrictions)} <Act
                    name='team-project.remove' description={project}
                    run={async () => { await call('removeTeamProject', { path: { ...path, project: slug }, dangerous: CHANGE }); await after(`The team has no role in ${project} any more.`) }}
                  />
                </li>
              ))}
            </ul>
            <Form name='team-project.set' run={setProject}>
              <Field label='Project' name='project' required hint='The name in the address, such as shop.' />
              <Field label={`Role of ${name} in the project`} name='role' value='developer' options={PROJECT_ROLES} />
              <Field label='Only in the target' name='target' hint='Empty: in all targets.' />
              <Field label='Only in the environment' name='environment' />
              <Field label='Production' name='except_status' options={[['', 'Included'], ['production', 'Without environments in production']]} />
            </Form>
            <Danger name='team.delete' title={`Delete the team ${name}?`} description={name} run={remove}>
              <p>Its members lose the roles that the team gives them.</p>
            </Danger>
          </div>
          )}
    </li>
  )
}
