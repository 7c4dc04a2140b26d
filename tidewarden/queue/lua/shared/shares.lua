-- shares: what one user may have of what all users share, as tidewarden/user_limits.py has it.

-- As a table: Lua has room for 200 local functions.
local function shares()
  local share = {}
  -- Refuses one more `what` to a user who has `mine` of `most`, of which `there` are there, where
  -- that is more than its share, in thousandths. Nobody in particular is not counted.
  function share.check(user, what, setting, mine, there, most, part)
    if user == '' or part >= 1000 or mine == 0 then return end
    local free = most - there
    if mine < math.floor(most * part / 1000) and mine * (1000 - part) < part * free then return end
    local left = text(free) .. ' of ' .. text(most) .. ' (' .. setting .. ') are free'
    refuse(
      'FULL the user '
        .. user
        .. ' has made '
        .. text(mine)
        .. ' '
        .. what
        .. ', where '
        .. left
        .. ': the rest is for others (limits.user_share)'
    )
  end

  -- Of `makers` (hash): `queues <user>` and `topics <user>`, how many there are of his; who made
  -- which, `queue <name>` and `topic <name>`.
  function share.of(what, user)
    return tonumber(redis.call('HGET', key('makers'), what .. 's ' .. user) or 0) or 0
  end
  function share.made(what, name, user)
    if user == '' then return end
    redis.call('HINCRBY', key('makers'), what .. 's ' .. user, 1)
    redis.call('HSET', key('makers'), what .. ' ' .. name, user)
  end
  function share.unmade(what, name)
    local user = redis.call('HGET', key('makers'), what .. ' ' .. name)
    if not user then return end
    redis.call('HDEL', key('makers'), what .. ' ' .. name)
    if redis.call('HINCRBY', key('makers'), what .. 's ' .. user, -1) <= 0 then
      redis.call('HDEL', key('makers'), what .. 's ' .. user)
    end
  end
  return share
end
