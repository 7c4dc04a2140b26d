-- shares: what one user may have of what all users share, as tidewarden/user_limits.py has it.

-- As a table: Lua has room for 200 local functions.
local function shares()
  local share = {}
  -- Refuses `many` more (1) of `what` to a user who has `mine` of `most`, of which `there` are
  -- there, where that is more than its share, in thousandths. Nobody in particular is not counted.
  function share.check(user, what, setting, mine, there, most, part, many)
    local free, others = most - there, (many or 1) - 1
    local last, left_then = mine + others, free - others
    if user == '' or part >= 1000 or last == 0 then return end
    if last < math.floor(most * part / 1000) and last * (1000 - part) < part * left_then then
      return
    end
    local found = text(mine) .. ' ' .. what .. ', where ' .. text(free) .. ' of ' .. text(most)
    local rest = ') are free: the rest is for others (limits.user_share)'
    refuse('FULL the user ' .. user .. ' has made ' .. found .. ' (' .. setting .. rest)
  end

  -- Of `makers` (hash): `queues <user>` and `topics <user>`, how many there are of his; who made
  -- which, `queue <name>` and `topic <name>`. What takes up more than one place has how many more
  -- in `more queue <name>`, and `more queues` has those of all.
  local function add(field, many)
    if many ~= 0 and redis.call('HINCRBY', key('makers'), field, many) <= 0 then
      redis.call('HDEL', key('makers'), field)
    end
  end
  local function counted(field)
    return tonumber(redis.call('HGET', key('makers'), field) or 0) or 0
  end
  function share.of(what, user) return counted(what .. 's ' .. user) end
  -- How many places so many names take up; and the one of a name.
  function share.all(what, names) return names + counted('more ' .. what .. 's') end
  function share.places(what, name) return 1 + counted('more ' .. what .. ' ' .. name) end
  function share.maker(what, name)
    return redis.call('HGET', key('makers'), what .. ' ' .. name) or ''
  end
  -- How many a queue with these settings needs, or a topic with these links: one for each 16
  -- shards, for every node keeps each of them, or for each 16 queues.
  function share.needed(what, raw)
    local fine, read = pcall(cjson.decode, what == 'queue' and raw or '{}')
    local many = fine and type(read) == 'table' and tonumber(read.shards) or 1
    if what == 'topic' then many = select(2, string.gsub(raw, '%S+', '')) end
    return math.max(1, math.ceil(many / 16))
  end
  function share.unmade(what, name)
    local user, places = share.maker(what, name), share.places(what, name)
    redis.call('HDEL', key('makers'), what .. ' ' .. name, 'more ' .. what .. ' ' .. name)
    add('more ' .. what .. 's', 1 - places)
    if user ~= '' then add(what .. 's ' .. user, -places) end
  end
  -- What was noted of the name goes first: a node of an older version drops and forgets names
  -- without what they take up.
  function share.made(what, name, user, places)
    share.unmade(what, name)
    add('more ' .. what .. 's', places - 1)
    if places > 1 then
      redis.call('HSET', key('makers'), 'more ' .. what .. ' ' .. name, places - 1)
    end
    if user == '' then return end
    add(what .. 's ' .. user, places)
    redis.call('HSET', key('makers'), what .. ' ' .. name, user)
  end
  function share.resized(what, name, user, places)
    if places ~= share.places(what, name) or user ~= share.maker(what, name) then
      share.made(what, name, user, places)
    end
  end
  return share
end
