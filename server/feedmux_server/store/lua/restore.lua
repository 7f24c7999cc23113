-- ARGV: definition, etag, position, cluster_time, order, epoch, seek_epoch, nonce, owner, lease_ms, create_ms, update_ms
-- For a live owner whose state Redis lost: there is no hash, the hash is from before the owner's open, or the owner's
-- own hash is damaged.
local epoch = number(read('epoch')[1])
local mine = tonumber(ARGV[6])
if epoch and (epoch > mine or epoch == mine and not damaged()) then return {'EXISTS'} end
replace(
  'definition', ARGV[1], 'etag', ARGV[2],
  'position', ARGV[3], 'cluster_time', ARGV[4], 'order', ARGV[5],
  'epoch', ARGV[6], 'commit_epoch', ARGV[6], 'seek_epoch', ARGV[7], 'nonce', ARGV[8], 'owner', ARGV[9],
  'lease_until_ms', int(now_ms() + tonumber(ARGV[10])), 'lease_ms', ARGV[10], 'fence_cause', 'LEASE',
  'create_ms', ARGV[11], 'update_ms', ARGV[12])
return {'OK'}
